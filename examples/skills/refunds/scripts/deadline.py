"""Prints the last day on which an order can be refunded: `python deadline.py 2026-10-01`."""

import sys
from datetime import date, timedelta

print(date.fromisoformat(sys.argv[1]) + timedelta(days=30))
