import jax

# An accidental broadcast between arrays of different rank is the commonest silent bug in array code.
jax.config.update("jax_numpy_rank_promotion", "raise")
