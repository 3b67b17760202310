// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/medium/open_doorbell.h"

#include <atomic>
#include <cerrno>

#include "progress/word_descriptor.h"
#include "progress/words.h"
#include "transport/pool/medium/ivshmem_doorbell.h"

namespace nupa::pool {
namespace {

/// Between processes of one machine that map the same file: a word of it that all of them count up, and futex(2). It is
/// the one line with several writers. They have one memory and one kernel, or they do not reach each other.
class FutexDoorbell final : public Doorbell {
 public:
  ~FutexDoorbell() override { descriptor_.stop(); }

  DoorbellLine line() const override {
    DoorbellLine line;
    line.kind = DoorbellKind::kFutex;
    return line;
  }
  Result<void> start(const DoorbellPlace& place) override {
    return descriptor_.start("nupa-bell", word_of(place.word));
  }
  int fd() const override { return descriptor_.fd(); }
  void take() override { descriptor_.take(); }
  bool reaches(const DoorbellLine& peer, const HostLine& own, const HostLine& theirs) const override {
    return peer.kind == DoorbellKind::kFutex && own.boot_id == theirs.boot_id &&
           own.file_device == theirs.file_device && own.file_inode == theirs.file_inode;
  }
  void ring(const DoorbellLine&, Line* word) override { progress::ring_word(word_of(word)); }

 private:
  static std::atomic<uint32_t>& word_of(Line* line) {
    static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);
    return *reinterpret_cast<std::atomic<uint32_t>*>(line);
  }

  progress::WordDescriptor descriptor_;
};

}  // namespace

Result<std::unique_ptr<Doorbell>> open_doorbell(const PoolMemory& memory) {
  const Spec& spec = memory.spec();
  if (spec.doorbell == DoorbellChoice::kNone) return fail(ENOTSUP, "doorbell=none is set");
  switch (spec.kind) {
    case MediumKind::kFile:
      if (memory.caches() != Caches::kCoherent)
        return fail(ENOTSUP, "coherence=none keeps the hosts apart, and a futex would join them");
      return std::make_unique<FutexDoorbell>();
    case MediumKind::kPci:
      return open_ivshmem_doorbell(memory);
    case MediumKind::kDax:
      break;
  }
  return fail(ENOTSUP, "a memory device has no doorbell");
}

}  // namespace nupa::pool
