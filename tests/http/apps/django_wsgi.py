"""The Django project with a plain view, for WSGI servers."""

from apps.actions import act_blocking, blocking_store
from apps.django_project import configure, key_of, response_of
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import path


def endpoint(request: HttpRequest, action: str) -> HttpResponseBase:
    if request.method != "POST":
        return HttpResponse(status=404)
    answer = act_blocking(action, key_of(request))
    return response_of(answer, iter(answer.chunks))


urlpatterns = [path("<action>", endpoint)]
configure(__name__, blocking_store)
app = WSGIHandler()
