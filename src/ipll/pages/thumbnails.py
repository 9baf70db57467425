"""Small pictures inside a page."""

from __future__ import annotations

import base64
import io

import numpy as np
import numpy.typing as npt
from PIL import Image

LARGE, SMALL = 64, 32  # px: larger pictures are shrunk, all the more where there are many
MANY = 240  # pictures on a page


def data_uri(image: npt.NDArray[np.uint8], size: int = LARGE) -> str:
    """[channels, height, width] -> a data URI; one channel (or an odd number of them) is drawn in grey.

    PNG, or JPEG where the picture stays larger than a thumbnail.
    """
    picture = Image.fromarray(image.transpose(1, 2, 0) if len(image) == 3 else image[0])
    picture.thumbnail((size, size))
    buffer = io.BytesIO()
    if max(picture.size) > LARGE:
        picture.save(buffer, "JPEG", quality=80, optimize=True)
        return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
    picture.save(buffer, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
