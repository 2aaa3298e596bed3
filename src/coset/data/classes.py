"""Names of the classes, in label order, and which of them mean the same thing across sets."""

DIGITS = tuple("0123456789")

FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)

KUZUSHIJI = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")

LETTERS = tuple("ABCDEFGHIJ")

CIFAR10 = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)

CIFAR100 = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
    camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
    cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
    lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom
    oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
    possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake
    spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor
    train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """.split()  # noqa: SIM905 (a hundred lines of one word each help nobody)
)

SAME_THING: dict[str, tuple[str, ...]] = {
    "automobile": ("beach wagon", "convertible", "limousine", "sports car", "police van"),
    "bird": ("goose", "black stork", "king penguin", "albatross"),
    "cat": ("tabby", "Persian cat", "Egyptian cat", "cougar", "lion", "leopard", "tiger"),
    "deer": ("gazelle",),
    "dog": (
        "Chihuahua",
        "Yorkshire terrier",
        "golden retriever",
        "Labrador retriever",
        "German shepherd",
        "standard poodle",
    ),
    "frog": ("bullfrog", "tailed frog"),
    "ship": ("gondola", "lifeboat"),
    "truck": (
        *("moving van", "police van", "school bus", "trolleybus", "tractor"),
        *("pickup_truck", "bus", "streetcar"),
    ),
}
"""For a class of CIFAR-10: the classes of TinyImageNet and CIFAR-100 that are the same kind of
thing, so that they are no outliers to a network which knows the class; nor is the class to a
network which knows one of them."""
