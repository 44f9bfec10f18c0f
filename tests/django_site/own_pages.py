"""The project's urls, with a page of its own for whatever is not handled."""

from django.http import HttpRequest, HttpResponse

from django_site.urls import urlpatterns
from django_site.views import effects

__all__ = ["handler500", "urlpatterns"]
status = 500
"""What the page answers."""


def handler500(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"own page after {len(effects)}", status=status, reason="Oh No", headers={"X-Own": "yes"})
