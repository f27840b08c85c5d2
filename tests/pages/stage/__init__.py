"""An app that lets tests see what a site sends, and hold it at a gate."""
