"""Forms of training code as engineers write them, one file a family; ``tests/programs/test_forms.py`` collects them."""
