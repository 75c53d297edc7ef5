"""Side conditions of lemmas: statements of linear integer arithmetic, and the solver that is asked for them."""
