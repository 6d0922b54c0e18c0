"""Functions on trajectory files and metrics, `plots` of them, `widgets` around the plots."""
