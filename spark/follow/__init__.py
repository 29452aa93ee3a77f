"""`reconcile --follow`: the same books again and again, and alarms for what is new in them."""
