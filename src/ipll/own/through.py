"""Which pretrained network photos are seen through, if any, and the one that a model was made with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ipll.errors import ConfigError
from ipll.networks.photos import EXTRA, LITE0, PhotoNetwork, find_network, missing
from ipll.own.defaults import AUTO, DIGITS, SMALL
from ipll.own.reading.images import Images
from ipll.own.reading.samples import Samples
from ipll.progress import Listener

SCRATCH = "scratch"
PIXELS = ("model.backbone", "model.weights", "model.weights_sha256", "data.size")  # settings of who learns from pixels
OF_FEATURES = ("augment.drop", "augment.noise")
GAIN = (
    "Photographs are learnt far better through a network that was trained on others (of ten species of birds 88 % were "
    f"right instead of 30): {EXTRA}. Going on from scratch."
)


class Through(NamedTuple):
    """The network that a model sees photos through, as model.json has it."""

    name: str
    digest: str

    def find(self) -> PhotoNetwork:
        """-> the very network; a ConfigError where it is not installed, or is another one by now."""
        network = find_network(self.name)
        if network.digest != self.digest:
            raise ConfigError(
                f"the network '{self.name}' of this machine is not the one that the model sees photos through: its "
                "weights, or how it is shown photos, differ. Install the version of then, or fit the model anew."
            )
        return network


def network_for(samples: Samples, asked: str, given: Mapping[str, Any], listener: Listener) -> PhotoNetwork | None:
    """-> the network that samples are to be seen through; None where they are learnt from as they come.

    'auto' is the one that the extra 'photos' brings, for photographs, unless a setting says how to learn from pixels.
    """
    pixels = [key for key in given if key in PIXELS or (key.startswith("augment.") and key not in OF_FEATURES)]
    if asked == SCRATCH:
        return None
    if asked == AUTO:
        if samples.images is None or pixels or not _photographs(samples.images):
            return None
        if missing(LITE0):
            listener.note(GAIN)
            return None
        return find_network(LITE0)
    if samples.images is None:
        raise ConfigError(f"{samples.source} holds features: no network is needed to see them. Leave out --network.")
    if pixels:
        raise ConfigError(
            f"{pixels[0]} is for learning from pixels, but '{asked}' makes features of them. Leave out one of the two."
        )
    return find_network(asked)


def _photographs(images: Images) -> bool:
    """Small grey images may be digits or letters, and tiny ones show little."""
    return images.side > (SMALL if images.channels == 3 else DIGITS)
