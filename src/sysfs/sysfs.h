// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The files in which programs look for an adapter, as a kernel has them for its devices (docs/design/sysfs.md). The
/// command `nupa run` describes the devices and publishes the files. One thread.
#include "sysfs/tree.h"
