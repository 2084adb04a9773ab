"""Getting weights: what stands behind `text-generation-server download-weights`."""

from text_generation_server.download.demo_model import demo_model_folder
from text_generation_server.download.errors import DownloadError
from text_generation_server.download.places import DownloadPlaces
from text_generation_server.download.resolve import download_weights, local_folder, result_line

__all__ = ["DownloadError", "DownloadPlaces", "demo_model_folder", "download_weights", "local_folder", "result_line"]
