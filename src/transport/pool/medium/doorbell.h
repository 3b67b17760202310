// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Doorbells: how a process of a pool wakes one of another host that sleeps. Memory alone wakes nobody. A process
/// without a doorbell looks at its channels from time to time.

#include <nupa/result.h>

#include <memory>
#include <vector>

#include "transport/pool/medium/layout.h"

namespace nupa::pool {

/// Another process of this host.
struct DoorbellNeighbour {
  uint32_t pid;  ///< in its namespace
  DoorbellLine line;
};
/// The record of the process whose doorbell starts.
struct DoorbellPlace {
  Line* word;  ///< kDoorbellWordLine
  uint16_t record;
  std::vector<DoorbellNeighbour> neighbours;
};

/// The doorbell of this process, and how it rings those of others. Any thread, unless a comment states otherwise.
class Doorbell {
 public:
  virtual ~Doorbell() = default;
  /// The line that this process publishes, without its instance. After start(); its kind before, too.
  virtual DoorbellLine line() const = 0;
  /// Rings make fd() readable from now on. Once, under the host's lock. EMFILE, ENFILE, ENOMEM, EAGAIN; for an ivshmem
  /// device those of VfioFunction, and ENOSPC: it has too few vectors.
  virtual Result<void> start(const DoorbellPlace& place) = 0;
  virtual int fd() const = 0;
  /// Takes the rings so far: fd() is not readable until the next one.
  virtual void take() = 0;
  /// True if both processes can ring each other. `own`, `theirs`: the lines of their hosts.
  virtual bool reaches(const DoorbellLine& peer, const HostLine& own, const HostLine& theirs) const = 0;
  /// Rings the doorbell of a process that this one reaches. `word`: the line kDoorbellWordLine of its record. One
  /// system call or one store; never waits.
  virtual void ring(const DoorbellLine& peer, Line* word) = 0;
};

/// The word for people: "none", "futex" or "ivshmem".
const char* name_of(DoorbellKind kind);

}  // namespace nupa::pool
