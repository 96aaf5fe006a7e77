"""An app without tasks."""

from penstock import Penstock

app = Penstock("memory://")
