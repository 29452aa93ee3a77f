"""`reconcile --follow`: the same audit again and again, and alarms for new findings."""
