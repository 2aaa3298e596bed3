"""Files of ours with wrong content under a right digest: a seeded corpus for all that read them."""

import copy
import random

import torch

ODD = (None, True, -1, 0, 2**70, 1.5, float("nan"), "", "text", [], [None], {}, {"tensor": "no"})


def places(facts, path=()):
    """Every place in nested dictionaries and lists."""
    yield path
    if isinstance(facts, dict | list):
        for key, part in facts.items() if isinstance(facts, dict) else enumerate(facts):
            yield from places(part, (*path, key))


def at(facts, path):
    for key in path:
        facts = facts[key]
    return facts


def with_wrong_facts(facts, chance, under=()):
    """One entry removed, replaced by something odd, or exchanged with another."""
    facts = copy.deepcopy(facts)
    known = [
        path for path in places(facts) if path[: len(under)] == under and len(path) > len(under)
    ]
    path = chance.choice(known)
    parent, key = at(facts, path[:-1]), path[-1]
    match chance.randrange(3):
        case 0:
            del parent[key]
        case 1:
            parent[key] = chance.choice(ODD)
        case _:
            parent[key] = copy.deepcopy(at(facts, chance.choice(known)))
    return facts


def with_wrong_tensors(tensors, chance):
    """One tensor removed, of another shape or type, not finite, or exchanged with another."""
    tensors, name = dict(tensors), chance.choice(list(tensors))
    tensor = tensors[name]
    match chance.randrange(7):
        case 0:
            del tensors[name]
        case 1:
            tensors[name] = tensor.flatten()[: chance.randrange(tensor.numel() + 1)]
        case 2:
            tensors[name] = tensor.unsqueeze(chance.randrange(tensor.dim() + 1))
        case 3:
            tensors[name] = tensor.to(chance.choice([torch.int32, torch.bool, torch.float16]))
        case 4:
            tensors[name] = torch.full_like(
                tensor, float("nan" if tensor.is_floating_point() else 9)
            )
        case 5:
            tensors[name] = tensor.new_zeros(0)
        case _:
            tensors[name] = tensors[chance.choice(list(tensors))]
    return tensors


def corrupted(tensors, facts, seed, under=()):
    """A file's content with one or two things wrong."""
    chance = random.Random(seed)
    for _ in range(chance.randrange(1, 3)):
        if tensors and chance.random() < 0.4:
            tensors = with_wrong_tensors(tensors, chance)
        else:
            facts = with_wrong_facts(facts, chance, under)
    return tensors, facts
