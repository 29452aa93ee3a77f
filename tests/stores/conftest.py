"""What the tests of the stores share."""

import pytest

pytest.register_assert_rewrite("ackwise.stores.testing", "ackwise.stores.inbox.testing")
