"""A small Django project: settings for all tests in this process, and views that count their effects."""

import tempfile
from pathlib import Path

import django
from django.conf import settings

folder = Path(tempfile.mkdtemp(prefix="semel-django-"))

if not settings.configured:
    settings.configure(
        SECRET_KEY="only for tests",
        ALLOWED_HOSTS=["*"],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": folder / "site.db",
                "OPTIONS": {"timeout": 20, "init_command": "PRAGMA journal_mode=WAL"},
            }
        },
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.sessions",
            "semel.django",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.common.CommonMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "semel.django.IdempotencyMiddleware",
        ],
        ROOT_URLCONF="django_site.urls",
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "OPTIONS": {"loaders": [("django.template.loaders.locmem.Loader", {"paid.html": "paid {{ number }}"})]},
            }
        ],
        REST_FRAMEWORK={
            "UNAUTHENTICATED_USER": None,
            "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
        },
        SEMEL={"store": "memory://"},
        USE_TZ=True,
    )
    django.setup()
