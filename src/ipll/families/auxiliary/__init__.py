"""Auxiliary losses: further terms of the loss, any number of them beside each other."""

MEMBERS = ("consistency", "contrastive", "prototype_kl", "cutmix")
