// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nupa/result.h>

#include <memory>

#include "transport/pool/medium/doorbell.h"
#include "transport/pool/medium/pool_memory.h"

namespace nupa::pool {

/// The doorbell of an ivshmem device (QEMU, docs/specs/ivshmem-spec.rst) that is bound to vfio-pci: a store to a
/// register is an interrupt in another guest, which makes a descriptor of one process readable. Each process of a guest
/// has the vector with the number of its record. ENOTSUP: `memory` is not that of such a device; the text has the
/// reason.
Result<std::unique_ptr<Doorbell>> open_ivshmem_doorbell(const PoolMemory& memory);

}  // namespace nupa::pool
