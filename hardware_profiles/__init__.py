"""Hardware profiles: accelerators and clusters, each number with its unit and its source."""

from hardware_profiles.calibration import Calibration, calibrate, calibration, calibrations
from hardware_profiles.catalog import accelerator, accelerators, cluster, clusters, read, to_yaml
from hardware_profiles.errors import ProfileError
from hardware_profiles.jsonschema import schema_json
from hardware_profiles.local import local_cluster
from hardware_profiles.schema import Accelerator, Cluster, Link, NetworkTier

__all__ = [
    "Accelerator",
    "Calibration",
    "Cluster",
    "Link",
    "NetworkTier",
    "ProfileError",
    "accelerator",
    "accelerators",
    "calibrate",
    "calibration",
    "calibrations",
    "cluster",
    "clusters",
    "local_cluster",
    "read",
    "schema_json",
    "to_yaml",
]
