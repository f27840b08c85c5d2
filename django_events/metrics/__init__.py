"""What goes on, in numbers: for Prometheus and OpenTelemetry, if the site has them."""
