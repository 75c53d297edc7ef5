"""Forms of training code as engineers write them, one file a family; ``tests/test_forms.py`` collects them."""
