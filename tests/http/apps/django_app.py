"""The Django project with an `async` view, for ASGI servers."""

from collections.abc import AsyncIterator

from apps.actions import act, async_store
from apps.django_project import configure, key_of, response_of
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import path

from semel.django.asgi import get_asgi_application


async def endpoint(request: HttpRequest, action: str) -> HttpResponseBase:
    if request.method != "POST":
        return HttpResponse(status=404)
    answer = await act(action, key_of(request))

    async def stream() -> AsyncIterator[bytes]:
        for chunk in answer.chunks:
            yield chunk

    return response_of(answer, stream())


urlpatterns = [path("<action>", endpoint)]
configure(__name__, async_store)
app = get_asgi_application()
