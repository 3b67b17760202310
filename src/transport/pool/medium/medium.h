// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The lower half of the pool transport: memory that hosts share, whose lines have one writing host each. On it lie the
/// directory of processes, their inboxes and blocks. `Pool` in pool.h is the interface for the engine of
/// the transport, and make_pool.h opens a pool. spec.h names the medium. `nupa pool` and `nupa doctor` use admin.h,
/// check.h, cpu.h, doorbell.h and open_doorbell.h. line_ring.h has the header line that the engine's records fill, and
/// sleep.h the steps of its sleep. The rules are in docs/design/pool.md, the fields in docs/reference/pool-layout.md.
