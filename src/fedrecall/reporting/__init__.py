"""Tables, figures and pages of finished runs."""
