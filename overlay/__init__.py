"""How peers find and reach each other; carries bytes, knows no query."""
