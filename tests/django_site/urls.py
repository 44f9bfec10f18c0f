"""Where the views are."""

from django.urls import include, path, re_path
from django.views.decorators.csrf import csrf_exempt

from django_site import api, views

urlpatterns = [
    path("sync/<answer>", views.pay),
    path("async/<answer>", views.apay),
    path("book/<alias>", views.book),
    path("csrf", views.with_csrf),
    path("count", views.count),
    path("marked", views.marked),
    path("shops/<slug:shop>/", include([path("exempt/<int:number>", views.exempt)])),
    re_path(r"^old/(?P<number>[0-9]+)/$", views.marked),
    path("exempt", views.exempt),
    path("class", csrf_exempt(views.Payments.as_view())),
    path("api/function", api.function),
    path("api/plain", api.Plain.as_view()),
    path("api/guarded", api.Guarded.as_view()),
    path("api/slow/<int:number>", api.Slow.as_view()),
    path("api/items", api.Items.as_view({"post": "create", "put": "rename"})),
]
