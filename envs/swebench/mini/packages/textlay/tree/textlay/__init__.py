"""Plain text laid out for terminals."""

from .indent import dedent, indent
from .table import Table
from .tabs import expand_tabs
from .width import char_width, clusters, display_width, pad, take, truncate
from .worddiff import Change, diff, inverse, patch, render, tokens
from .wrap import fill, list_item, wrap

__all__ = ["Change", "Table", "char_width", "clusters", "dedent", "diff", "display_width", "expand_tabs", "fill"]
__all__ += ["indent", "inverse", "list_item", "pad", "patch", "render", "take", "tokens", "truncate", "wrap"]
