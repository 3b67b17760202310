// SPDX-License-Identifier: Apache-2.0
/// Tests of the topology, the peer info of ranks, the settings, and the algorithms that are chosen from them.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ccl/connect/peer_info.h"
#include "ccl/communicator/options.h"
#include "ccl/channel/channel_group.h"
#include "ccl/channel/shm_group.h"
#include "ccl/planner/planner.h"
#include "ccl/reduce/reduce.h"
#include "ccl/connect/topology_of.h"
#include "ccl/channel/hierarchical_group.h"

namespace nupa::ccl {
namespace {

/// A rank of that memory and host, which may run on so many processors.
PeerInfo peer_info_of(char memory, char host = 'h', uint32_t processors = 64) {
  PeerInfo peer_info;
  if (memory != '-') peer_info.memory_domain[0] = static_cast<uint8_t>(memory);
  peer_info.host[0] = static_cast<uint8_t>(host);
  for (uint32_t i = 0; i < processors; ++i) peer_info.processors[i / 64] |= uint64_t{1} << i % 64;
  return peer_info;
}

std::vector<PeerInfo> peer_infos_of(const std::string& memories) {
  std::vector<PeerInfo> peer_infos;
  for (const char memory : memories) peer_infos.push_back(peer_info_of(memory));
  return peer_infos;
}

using Memories = std::vector<std::vector<uint32_t>>;

TEST(CclTopology, TopologyOf_Memories_AreOrderedByTheirFirstRanks) {
  const Topology topology = topology_of(3, peer_infos_of("abacab"));
  EXPECT_EQ(topology.memories, (Memories{{0, 2, 4}, {1, 5}, {3}}));
  EXPECT_EQ(topology.ranks, 6u);
  EXPECT_EQ(topology.rank, 3u);
  EXPECT_EQ(topology.memory, 2u);
  EXPECT_EQ(topology.local_index, 0u);
  EXPECT_EQ(topology.fewest(), 1u);
  EXPECT_EQ(topology.most(), 3u);
  EXPECT_FALSE(topology.is_one_memory());
  const Topology last = topology_of(5, peer_infos_of("abacab"));
  EXPECT_EQ(last.memory, 1u);
  EXPECT_EQ(last.local_index, 1u);
  EXPECT_EQ(last.local(), (std::vector<uint32_t>{1, 5}));
  EXPECT_TRUE(topology_of(0, peer_infos_of("aaa")).is_one_memory());
}

TEST(CclTopology, TopologyOf_RanksWithoutAMemoryDomain_ShareNoMemory) {
  EXPECT_EQ(topology_of(0, peer_infos_of("--")).memories, (Memories{{0}, {1}}));
  EXPECT_FALSE(peer_info_of('-').shares_memory_with(peer_info_of('-')));
  EXPECT_TRUE(peer_info_of('a').shares_memory_with(peer_info_of('a')));
  EXPECT_FALSE(peer_info_of('a').shares_memory_with(peer_info_of('b')));
}

TEST(CclTopology, TopologyOf_MoreRanksThanProcessors_SharesCores) {
  const auto shares = [](const std::vector<PeerInfo>& peer_infos) {
    return topology_of(0, peer_infos).rules.shares_cores;
  };
  EXPECT_FALSE(shares({peer_info_of('a', 'h', 2), peer_info_of('a', 'h', 2)}));
  EXPECT_TRUE(shares({peer_info_of('a', 'h', 2), peer_info_of('a', 'h', 2), peer_info_of('a', 'h', 2)}));
  EXPECT_FALSE(shares({peer_info_of('a', 'h', 2), peer_info_of('a', 'h', 2), peer_info_of('b', 'i', 2)}))
      << "on another host";
  // Each has one processor, and they are two.
  PeerInfo second = peer_info_of('a', 'h', 0);
  second.processors[3] = 2;
  EXPECT_FALSE(shares({peer_info_of('a', 'h', 1), second}));
  EXPECT_TRUE(shares({peer_info_of('a', 'h', 1), peer_info_of('a', 'h', 1)}));
  EXPECT_GT(topology_of(0, peer_infos_of("a")).rules.spin_ns, 0);
}

// ---- cards ----------------------------------------------------------------------------------------------------------

PeerInfo full_peer_info() {
  PeerInfo peer_info;
  for (size_t i = 0; i < 16; ++i) {
    peer_info.gid.raw[i] = static_cast<uint8_t>(1 + i);
    peer_info.pool_gid.raw[i] = static_cast<uint8_t>(51 + i);
    peer_info.memory_domain[i] = static_cast<uint8_t>(101 + i);
    peer_info.host[i] = static_cast<uint8_t>(201 + i);
  }
  peer_info.mailbox = 0x11121314;
  peer_info.process = 0x21222324;
  peer_info.process_space = 0x3132333435363738;
  peer_info.processors[0] = 5;
  peer_info.processors[15] = 6;
  peer_info.host_name = "some-host";
  return peer_info;
}

TEST(CclPeerInfo, EncodeAndDecode_IsEqual) {
  const PeerInfo peer_info = full_peer_info();
  const auto back = PeerInfo::decode(peer_info.encode());
  ASSERT_TRUE(back) << back.error().what();
  EXPECT_EQ(back->gid.raw, peer_info.gid.raw);
  EXPECT_EQ(back->pool_gid.raw, peer_info.pool_gid.raw);
  EXPECT_EQ(back->memory_domain, peer_info.memory_domain);
  EXPECT_EQ(back->host, peer_info.host);
  EXPECT_EQ(back->processors, peer_info.processors);
  EXPECT_EQ(back->mailbox, peer_info.mailbox);
  EXPECT_EQ(back->process, peer_info.process);
  EXPECT_EQ(back->process_space, peer_info.process_space);
  EXPECT_EQ(back->host_name, peer_info.host_name);
  EXPECT_EQ(back->text(), "process " + std::to_string(peer_info.process) + " on some-host");
}

TEST(CclPeerInfo, Decode_InvalidBytes_FailsWithEproto) {
  constexpr size_t kFixed = 216;  // what a card has before its name
  const PeerInfoBytes right = full_peer_info().encode();
  ASSERT_EQ(right.size(), kFixed + 9);
  for (const size_t length : {size_t{0}, kFixed - 1, kFixed, right.size() - 1}) {
    PeerInfoBytes cut(right.begin(), right.begin() + static_cast<ptrdiff_t>(length));
    EXPECT_EQ(PeerInfo::decode(cut).error().code(), EPROTO) << length;
  }
  PeerInfoBytes longer = right;
  longer.push_back(std::byte{'x'});
  EXPECT_EQ(PeerInfo::decode(longer).error().code(), EPROTO);
  for (const size_t at : {size_t{0}, size_t{3}, size_t{4}}) {  // the magic and the version
    PeerInfoBytes other = right;
    other[at] ^= std::byte{1};
    EXPECT_EQ(PeerInfo::decode(other).error().code(), EPROTO) << at;
  }
  for (const uint16_t length : {uint16_t{64}, uint16_t{65}}) {
    PeerInfoBytes named = right;
    named.resize(kFixed + length, std::byte{'n'});
    std::memcpy(named.data() + 6, &length, sizeof length);
    EXPECT_EQ(PeerInfo::decode(named).has_value(), length == 64) << length;
  }
}

TEST(CclPeerInfo, SeesEndOf_ProcessOfTheSamePidNamespaceExited_IsTrue) {
  const PeerInfo own = peer_info_of_this_process();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    close(ends[1]);
    _exit(read(ends[0], &byte, 1) == 0 ? 0 : 1);
  }
  PeerInfo other = own;
  other.process = static_cast<uint32_t>(child);
  EXPECT_FALSE(own.sees_end_of(other)) << "it lives";
  close(ends[1]);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(own.sees_end_of(other)) << "its parent has not asked for it";
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(own.sees_end_of(other));
  PeerInfo elsewhere = other;
  elsewhere.host[0] ^= 1;
  EXPECT_FALSE(own.sees_end_of(elsewhere)) << "its number means nothing here";
  elsewhere = other;
  elsewhere.process_space ^= 1;
  EXPECT_FALSE(own.sees_end_of(elsewhere));
  PeerInfo unknown = own;
  unknown.process_space = elsewhere.process_space = 0;
  EXPECT_FALSE(unknown.sees_end_of(elsewhere));
  close(ends[0]);
}

TEST(CclPeerInfo, SeesEndOf_NoDescriptorIsFree_TheProcessLives) {
  const PeerInfo own = peer_info_of_this_process();
  ASSERT_NE(own.process_space, 0u);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool ended = own.sees_end_of(own);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(ended);
}

// ---- what the environment says --------------------------------------------------------------------------------------

class CclOptions : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const char* const name : {"NUPA_CCL_TIMEOUT", "NUPA_CCL_SLOT_BYTES", "NUPA_CCL_MAPPED_RANKS", "NUPA_CCL_CHECK",
                                   "NUPA_CCL_DETERMINISTIC", "NUPA_CCL_READS", "NUPA_CCL_ALGO", "NUPA_CCL_TRACE"})
      unsetenv(name);
  }
};

TEST_F(CclOptions, FromEnvironment_NothingIsSet_GivesTheDefaults) {
  const auto options = CommunicatorOptions::from_environment();
  ASSERT_TRUE(options);
  EXPECT_EQ(options->limit_ns, 300'000'000'000);
  EXPECT_EQ(options->slot_bytes, 256u << 10);
  EXPECT_EQ(options->mapped_ranks, 64u);
  EXPECT_TRUE(options->reads);
  EXPECT_FALSE(options->checks || options->deterministic);
  EXPECT_EQ(options->wanted(Operation::kReduce), "");
}

TEST_F(CclOptions, FromEnvironment_ValidValues_AreUsed) {
  setenv("NUPA_CCL_TIMEOUT", "7", 1);
  setenv("NUPA_CCL_SLOT_BYTES", "4097", 1);
  setenv("NUPA_CCL_MAPPED_RANKS", "512", 1);
  setenv("NUPA_CCL_CHECK", "yes", 1);
  setenv("NUPA_CCL_DETERMINISTIC", "on", 1);
  setenv("NUPA_CCL_READS", "no", 1);
  setenv("NUPA_CCL_ALGO", "all_reduce=ring,reduce=binomial,scan=", 1);
  const auto options = CommunicatorOptions::from_environment();
  ASSERT_TRUE(options);
  EXPECT_EQ(options->limit_ns, 7'000'000'000);
  EXPECT_EQ(options->slot_bytes, 8192u) << "whole pages";
  EXPECT_EQ(options->mapped_ranks, 512u);
  EXPECT_TRUE(options->checks && options->deterministic);
  EXPECT_FALSE(options->reads);
  EXPECT_EQ(options->wanted(Operation::kAllReduce), "ring");
  EXPECT_EQ(options->wanted(Operation::kReduce), "binomial") << "not all_reduce's";
  EXPECT_EQ(options->wanted(Operation::kScan), "");
  EXPECT_EQ(options->wanted(Operation::kExscan), "");
}

TEST_F(CclOptions, FromEnvironment_InvalidValue_FailsAndNamesTheVariable) {
  struct Wrong {
    const char* name;
    std::vector<const char*> values;
  };
  for (const Wrong& wrong :
       {Wrong{"NUPA_CCL_TIMEOUT", {"0", "-1", "2147483648", "1s", " 1"}},
        Wrong{"NUPA_CCL_SLOT_BYTES", {"0", "1073741825", "4k"}}, Wrong{"NUPA_CCL_MAPPED_RANKS", {"0", "513"}},
        Wrong{"NUPA_CCL_CHECK", {"2", "Yes"}}, Wrong{"NUPA_CCL_DETERMINISTIC", {"always"}},
        Wrong{"NUPA_CCL_READS", {"never"}}, Wrong{"NUPA_CCL_TRACE", {"/nonexistent/folder/trace"}}}) {
    for (const char* const value : wrong.values) {
      setenv(wrong.name, value, 1);
      const auto options = CommunicatorOptions::from_environment();
      ASSERT_FALSE(options) << wrong.name << "=" << value;
      EXPECT_EQ(options.error().code(), EINVAL);
      EXPECT_NE(std::string_view(options.error().what()).find(wrong.name), std::string::npos) << options.error().what();
    }
    unsetenv(wrong.name);
  }
}

// ---- which algorithm is chosen in memory and across hosts -----------------------------------------------------------

class NoChannels final : public ChannelGroup::Provider {
 public:
  void want(uint32_t) override {}
  Wait ready(uint32_t) override { return {}; }
  MessageChannel& channel(uint32_t) override { std::abort(); }
  uint32_t ahead() const override { return 1; }
  bool is_used(uint32_t) const override { return false; }
};

struct FreeDelete {
  void operator()(void* memory) const { std::free(memory); }
};

/// Ranks of those memories, as the first one has them.
class Place {
 public:
  explicit Place(const std::string& memories)
      : topology_(topology_of(0, peer_infos_of(memories))),
        arena_(std::aligned_alloc(kCacheLine, arena_bytes(kCacheLine))),
        local_(0, std::vector<std::byte*>(topology_.local().size(), static_cast<std::byte*>(arena_.get())),
               topology_.local(), kCacheLine, topology_.rules),
        all_(0, std::vector<uint32_t>(topology_.ranks), provider_),
        hierarchical(topology_, local_, all_, nullptr, kBestParts) {}

  ShmGroup& local() { return local_; }

 private:
  NoChannels provider_;
  const Topology topology_;
  std::unique_ptr<void, FreeDelete> arena_;
  ShmGroup local_;
  ChannelGroup all_;

 public:
  HierarchicalGroup hierarchical;
};

Call call_of(Operation operation, size_t bytes) {
  Call call;
  call.operation = operation;
  call.elements = bytes;
  return call;
}

template <class Group>
std::string name_of(const Call& call, const Group& group) {
  const auto* const chosen = choose(call, group);
  return chosen == nullptr ? "none" : chosen->name;
}

TEST(CclShmPlan, Choose_SizesAroundEachLimit_GiveTheAlgorithm) {
  Place place("aaaa");
  const auto name = [&](Operation operation, size_t bytes) {
    return name_of(call_of(operation, bytes), place.local());
  };
  EXPECT_EQ(name(Operation::kAllReduce, 56), "lines");
  EXPECT_EQ(name(Operation::kAllReduce, 57), "slots");
  EXPECT_EQ(name(Operation::kAllReduce, 8192), "slots");
  EXPECT_EQ(name(Operation::kAllReduce, 8193), "slices");
  EXPECT_EQ(name(Operation::kReduce, 32768), "slots");
  EXPECT_EQ(name(Operation::kReduce, 32769), "slices");
  EXPECT_EQ(name(Operation::kBroadcast, 56), "line");
  EXPECT_EQ(name(Operation::kBroadcast, 57), "slots");
  EXPECT_EQ(name(Operation::kAllGather, 56), "lines");
  EXPECT_EQ(name(Operation::kAllGather, 57), "slots");
  Call lists = call_of(Operation::kAllGather, 8);
  lists.equal = false;
  EXPECT_EQ(name_of(lists, place.local()), "slots") << "not every rank's block fits because this one's does";
}

TEST(CclHierarchicalGroup, MemoryAndIndex_OfEachRank_AreFound) {
  Place place("abba");
  HierarchicalGroup& group = place.hierarchical;
  EXPECT_EQ(group.memories(), 2u);
  EXPECT_EQ(group.cross_node_groups(), 2u);
  const uint32_t memories[] = {0, 1, 1, 0};
  const uint32_t indices[] = {0, 0, 1, 1};
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(group.memory_of(rank), memories[rank]) << rank;
    EXPECT_EQ(group.index_of(rank), indices[rank]) << rank;
  }
  EXPECT_EQ(group.first_of(1), 1u);
  EXPECT_EQ(group.size_of_memory(1), 2u);
}

TEST(CclHierarchicalGroup, IsInOrder_RanksOfEachMemoryAreConsecutive_IsTrue) {
  EXPECT_TRUE(Place("aabb").hierarchical.is_in_order());
  EXPECT_TRUE(Place("abbcc").hierarchical.is_in_order());
  EXPECT_FALSE(Place("abab").hierarchical.is_in_order());
  EXPECT_FALSE(Place("aaba").hierarchical.is_in_order());
  EXPECT_FALSE(Place("abcb").hierarchical.is_in_order());
  EXPECT_TRUE(Place("aabb").hierarchical.is_even());
  EXPECT_FALSE(Place("aab").hierarchical.is_even());
}

TEST(CclHierarchicalPlan, Choose_MemoriesUnevenOrOutOfOrder_UsesOtherAlgorithms) {
  constexpr size_t kLarge = 32768;
  struct Expected {
    const char* memories;
    const char *all_gather, *reduce_scatter, *large, *large_by_function, *reduce_by_function;
  };
  for (const Expected& one : {Expected{"aabb", "two-level", "two-level", "columns", "columns", "two-level"},
                              Expected{"aabbb", "two-level", "none", "columns", "columns", "two-level"},
                              Expected{"abab", "none", "none", "columns", "none", "none"},
                              Expected{"abb", "two-level", "none", "two-level", "two-level", "two-level"}}) {
    Place place(one.memories);
    const HierarchicalGroup& group = place.hierarchical;
    EXPECT_EQ(name_of(call_of(Operation::kAllGather, 8), group), one.all_gather) << one.memories;
    EXPECT_EQ(name_of(call_of(Operation::kReduceScatter, 8), group), one.reduce_scatter) << one.memories;
    EXPECT_EQ(name_of(call_of(Operation::kAllReduce, kLarge), group), one.large) << one.memories;
    EXPECT_EQ(name_of(call_of(Operation::kAllReduce, kLarge - 1), group), "two-level") << one.memories;
    Call call = call_of(Operation::kAllReduce, kLarge);
    call.reducer.function = [](void*, const void*, size_t, int, void*) {};
    EXPECT_EQ(name_of(call, group), one.large_by_function) << one.memories;
    call.operation = Operation::kReduce;
    EXPECT_EQ(name_of(call, group), one.reduce_by_function) << one.memories;
    for (const Operation operation : {Operation::kAllGather, Operation::kReduceScatter}) {
      Call lists = call_of(operation, 8);
      lists.equal = false;
      EXPECT_EQ(name_of(lists, group), "none") << one.memories;
    }
    EXPECT_EQ(name_of(call_of(Operation::kScan, 8), group), "none");
  }
}

}  // namespace
}  // namespace nupa::ccl
