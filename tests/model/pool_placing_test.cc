// SPDX-License-Identifier: Apache-2.0
/// Memory in a pool that its owner has granted to a requester: what the requester's threads write there, and what the
/// owner does with it when the grant is returned. The caches of the hosts are coherent.
#include "shadow.h"
#include "expect.h"
#include "shm/send_lock.h"
// The lines that ship; this program does not hold the library.
#include "transport/pool/granted.cc"
#include "transport/pool/medium/line_ring.h"

namespace nupa::pool {
namespace {

using model::Build;
using model::Case;
using shm::SendLock;

/// The orders of Coherent, on words that the checker follows.
struct ModelledCoherent {
  static std::atomic<uint64_t>& word(const Line* line) {
    return *reinterpret_cast<std::atomic<uint64_t>*>(const_cast<uint64_t*>(line->words));
  }
  static uint64_t poll(const Line* line) { return word(line).load(std::memory_order_acquire); }
  static Line read(const Line* line) {
    Line copy;
    // The word that poll() has returned: nothing writes the line before it is given back.
    copy.words[0] = word(line).load(std::memory_order_relaxed);
    std::memcpy(&copy.words[1], &line->words[1], sizeof copy.words - sizeof copy.words[0]);
    return copy;
  }
  static void publish(Line* line, const Line& content) {
    std::memcpy(&line->words[1], &content.words[1], sizeof content.words - sizeof content.words[0]);
    word(line).store(content.words[0], std::memory_order_release);
  }
  static void store(Line*, const ::std::byte*, size_t) {}
  static void clear(Line* line) { word(line).store(0, std::memory_order_relaxed); }
  static void fence() {}
  static void refresh(const Line*, size_t) {}
  static void load(::std::byte*, const ::std::byte*, size_t) {}
  static void write_back(const Line*, size_t) {}
  static void full_fence() {}
};

constexpr uint32_t kLines = 16;
enum Tag : uint16_t { kPlaced = 1, kAskBack, kReturned };

/// One direction of a channel.
struct Way {
  Line lines[kLines];
  Line credit;
  RingWriter<ModelledCoherent> writer{{}, lines, kLines, &credit};
  RingReader<ModelledCoherent> reader{{}, lines, kLines, &credit};

  void write(Tag tag) {
    Header header;
    header.tag = tag;
    writer.publish(header);
  }
  Tag read() {
    Header header;
    while (reader.look(&header) == RingReader<ModelledCoherent>::Look::kNothing) model::pause();
    reader.pop();
    return static_cast<Tag>(header.tag);
  }
};

struct World {
  World() { granted.add({.number = 1, .rkey = 7, .address = 0, .bytes = sizeof memory, .at = memory}); }

  // The owner's host.
  ::std::byte memory[8]{};
  std::atomic<uint32_t> is_used{};  ///< the owner uses the memory for something else; for x86
  Way to_requester;
  Way to_owner;
  // The requester's process.
  std::atomic<uint32_t> send_lock{};
  std::mutex link_mutex;
  Granted granted;
};

/// A thread that posts: as Requester::write_part() and Link::place().
void add_poster(Case& made, World& world) {
  made.thread("poster", [&world] {
    SendLock lock(world.send_lock);
    const ::std::lock_guard held(lock);
    model::note_access(&world.granted, sizeof world.granted, false);
    const Granted::Region* const region = world.granted.find(7, 0, sizeof world.memory);
    if (region == nullptr) return;
    const ::std::lock_guard link(world.link_mutex);
    const uint64_t data = 5;
    std::memcpy(region->at, &data, sizeof data);
    model::require(world.is_used.load(std::memory_order_relaxed) == 0, "granted memory is not used for other data");
    world.to_owner.write(kPlaced);
  });
}

/// The thread that takes the turns of the requester's process: as ConnectedEndpoint::take_grant() and
/// Engine::flush_answers().
void add_engine(Case& made, World& world) {
  made.thread("engine", [&world] {
    if (world.to_requester.read() != kAskBack) return;
    {
      SendLock lock(world.send_lock);
      const ::std::lock_guard held(lock);
      model::note_access(&world.granted, sizeof world.granted, true);
      world.granted.remove(1);
    }
    const ::std::lock_guard link(world.link_mutex);
    world.to_owner.write(kReturned);
  });
}

/// As Engine::take_back() with the owner's turns.
void add_owner(Case& made, World& world) {
  made.thread("owner", [&world] {
    world.to_requester.write(kAskBack);
    for (bool returned = false; !returned;) {
      returned = world.to_owner.read() == kReturned;
      // The completion of a WRITE shows its bytes.
      uint64_t seen = 0;
      if (!returned) std::memcpy(&seen, world.memory, sizeof seen);
      if (!returned) model::require(seen == 5, "what was placed is there");
    }
    const uint64_t other = 9;
    std::memcpy(world.memory, &other, sizeof other);
    world.is_used.store(1, std::memory_order_relaxed);
  });
}

void takes_back_beside_a_poster(Case& made) {
  auto& world = made.make<World>();
  add_poster(made, world);
  add_engine(made, world);
  add_owner(made, world);
}

TEST(ModelPoolPlacing, TakenBackBesideAPoster_TheMemoryIsTheOwnersAlone) {
  model::expect_holds(takes_back_beside_a_poster);
}

TEST(ModelPoolPlacing, Orders_AreAsStrongAsTheCasesNeed) {
  // No full fence is among them: a grant is not looked at like a key, but under the lock under which it is returned.
  const Build cases[] = {takes_back_beside_a_poster};
  EXPECT_EQ(model::needed_orders(cases, {"pool_placing_test.cc", "shm/send_lock.h", "base/fence.h"}),
            (::std::vector<::std::string>{
                "ModelledCoherent::poll load acquire: x86 relaxed, C++ acquire",
                "ModelledCoherent::read load relaxed: x86 relaxed, C++ relaxed",
                "ModelledCoherent::publish store release: x86 relaxed, C++ release",
                "{anonymous}::add_poster load relaxed: x86 relaxed, C++ relaxed",
                "{anonymous}::add_owner store relaxed: x86 relaxed, C++ relaxed",
                "SendLock::try_lock load relaxed: x86 relaxed, C++ relaxed",
                "SendLock::try_lock failure seq_cst: x86 relaxed, C++ relaxed",
                "SendLock::try_lock compare_exchange seq_cst: x86 relaxed, C++ relaxed",
                "SendLock::unlock store release: x86 relaxed, C++ release",
                "SendLock::unlock load relaxed: x86 relaxed, C++ relaxed",
                "base::fence_after_update fence seq_cst: x86 none, C++ none",
            }));
}

}  // namespace
}  // namespace nupa::pool
