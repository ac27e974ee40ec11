"""What every test run does: it measures parts against budgets, and deselects what this machine cannot do."""
