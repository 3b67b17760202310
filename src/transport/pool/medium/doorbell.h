// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Doorbells: how a process of a pool wakes one of another host that sleeps. Memory alone wakes nobody. A process
/// without a doorbell looks at its channels from time to time.

#include <nupa/result.h>

#include <memory>

#include "transport/pool/medium/layout.h"
#include "transport/pool/medium/pool_memory.h"

namespace nupa::pool {

/// The doorbell of this process, and how it rings those of others. Any thread, unless a comment states otherwise.
class Doorbell {
 public:
  virtual ~Doorbell() = default;
  /// The line that this process publishes, without its instance.
  virtual DoorbellLine line() const = 0;
  /// Rings make fd() readable from now on. `word`: the line kDoorbellWordLine of this process's record. Once. EMFILE,
  /// ENFILE, ENOMEM, EAGAIN.
  virtual Result<void> start(Line* word) = 0;
  virtual int fd() const = 0;
  /// Takes the rings so far: fd() is not readable until the next one.
  virtual void take() = 0;
  /// True if both processes can ring each other. `own`, `theirs`: the lines of their hosts.
  virtual bool reaches(const DoorbellLine& peer, const HostLine& own, const HostLine& theirs) const = 0;
  /// Rings the doorbell of a process that this one reaches. `word`: the line kDoorbellWordLine of its record. One
  /// system call or one store; never waits.
  virtual void ring(const DoorbellLine& peer, Line* word) = 0;
};

/// The word for people: "none" or "futex".
const char* name_of(DoorbellKind kind);

/// Opens the doorbell of a medium. ENOTSUP: it has none, or `doorbell=none` is set; the text has the reason. Others: it
/// has one that this process cannot use.
Result<std::unique_ptr<Doorbell>> open_doorbell(const PoolMemory& memory);

}  // namespace nupa::pool
