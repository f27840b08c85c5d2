"""What `manage.py check` finds."""
