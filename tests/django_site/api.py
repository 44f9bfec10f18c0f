"""Views of Django REST framework."""

from typing import Any

from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import api_view
from rest_framework.exceptions import AuthenticationFailed, ValidationError
from rest_framework.generics import CreateAPIView
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.serializers import IntegerField, Serializer
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from django_site.views import effects, entered, go_on
from semel import Policy
from semel.django import idempotent
from semel.django.drf import IdempotentMixin

tokens = {"token-1": "alice", "token-2": "alice", "token-3": "bob"}


class Person:
    is_authenticated = True

    def __init__(self, name: str) -> None:
        self.pk = name


class Tokens(BaseAuthentication):
    """Two tokens of one person, as after a refresh."""

    def authenticate(self, request: Request) -> tuple[Person, str]:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in tokens:
            raise AuthenticationFailed("unknown token")
        return Person(tokens[token]), token

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


@idempotent()
@api_view(["POST"])
def function(request: Request) -> Response:
    effects.append("function")
    return Response({"got": request.data}, status=201)


class Plain(APIView):
    authentication_classes: list[Any] = []

    def post(self, request: Request) -> Response:
        effects.append("plain")
        if request.data.get("boom"):
            raise RuntimeError("on purpose")
        return Response({"got": request.data}, status=201)


class Guarded(IdempotentMixin, APIView):
    authentication_classes = [Tokens]
    permission_classes = [IsAuthenticated]

    def post(self, request: Request) -> Response:
        effects.append("guarded")
        return Response({"by": request.user.pk}, status=201)


class Slow(IdempotentMixin, APIView):
    authentication_classes = [Tokens]
    permission_classes = [IsAuthenticated]

    def post(self, request: Request, number: int) -> Response:
        effects.append("slow")
        entered.set()
        go_on.wait(10)
        return Response({"by": request.user.pk}, status=201)


class Items(IdempotentMixin, ViewSet):
    authentication_classes = [Tokens]

    @idempotent()
    def create(self, request: Request) -> Response:
        effects.append("create")
        return Response({"by": request.user.pk}, status=201)

    def rename(self, request: Request) -> Response:
        effects.append("rename")
        return Response({"by": request.user.pk})


class Order(Serializer[Any]):
    amount = IntegerField(min_value=1)

    def create(self, validated_data: Any) -> Any:
        effects.append("created")
        if validated_data["amount"] > 100:
            raise ValidationError("too much, and found out late")
        return validated_data


@idempotent(Policy(release_invalid=True))
class Orders(IdempotentMixin, CreateAPIView[Any]):
    """With the framework's own `create`, which validates first."""

    authentication_classes: list[Any] = []
    serializer_class = Order


@idempotent(Policy(release_invalid=True))
class HastyOrders(IdempotentMixin, CreateAPIView[Any]):
    """One that does something before it validates."""

    authentication_classes: list[Any] = []
    serializer_class = Order

    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        effects.append("something")
        return super().create(request, *args, **kwargs)


@idempotent()
class KeptOrders(Orders):
    """Under the default policy."""
