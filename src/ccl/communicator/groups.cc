// SPDX-License-Identifier: Apache-2.0
#include "ccl/communicator/groups.h"

#include <numeric>

#include "ccl/algorithms/messages.h"
#include "ccl/planner/link_speed.h"
#include "ccl/algorithms/shm.h"
#include "ccl/algorithms/shm/parts.h"

namespace nupa::ccl {

Groups::Groups(Places places) : places_(std::move(places)), kind_(kind_of_ranks()) {}

Groups::Kind Groups::kind_of_ranks() const {
  const Topology& topology = places_.topology;
  if (topology.most() > places_.options.mapped_ranks) return Kind::kMessages;
  if (topology.is_one_memory()) return Kind::kMapped;
  return topology.most() > 1 ? Kind::kHierarchical : Kind::kMessages;
}

int Groups::run(CollectiveTask steps) {
  return run_tasks(steps, places_.topology.rules, places_.hooks, places_.options.limit_ns);
}

int Groups::make_mapped() {
  const Topology& topology = places_.topology;
  for (const uint32_t rank : topology.local()) places_.links.want(rank);
  std::vector<std::byte*> arenas;
  for (const uint32_t rank : topology.local()) {
    if (rank != topology.rank) {
      const auto until = [](Wait wait) -> CollectiveTask { co_return co_await wait; };
      if (const int error = run(until(places_.links.ready(rank))); error != 0) return error;
    }
    arenas.push_back(places_.links.arena_of(rank));
  }
  shm_group_ = std::make_unique<ShmGroup>(topology.local_index, std::move(arenas), topology.local(),
                                          places_.options.slot_bytes, topology.rules);
  mapped_regions_ =
      std::make_unique<MappedRegionCache>(places_.allocations, places_.links, topology.local_index, topology.local());
  shm_group_->set_mapped_regions(mapped_regions_.get());
  if (const int error = make_reads(); error != 0) return error;
  if (kind_ == Kind::kMapped && places_.options.algorithms.empty()) inline_group_ = shm_group_.get();
  return 0;
}

int Groups::make_reads() {
  const Topology& topology = places_.topology;
  const auto& peer_infos = places_.peer_infos;
  std::vector<pid_t> processes;
  bool can = places_.options.reads;
  for (const uint32_t rank : topology.local()) {
    processes.push_back(static_cast<pid_t>(peer_infos[rank].process));
    can = can && peer_infos[rank].process_space != 0 &&
          peer_infos[rank].process_space == peer_infos[topology.rank].process_space;
  }
  reads_ = std::make_unique<CmaReads>(std::move(processes),
                                      [this](uint32_t index) { places_.on_dead(places_.topology.local()[index]); });
  for (uint32_t i = 0; can && i < topology.local().size(); ++i) {
    std::byte seen;
    if (i != topology.local_index)
      can = reads_->read(i, &seen, places_.links.arena_address_of(topology.local()[i]), sizeof seen) == 0;
  }
  size_t refused = can ? 0 : 1;
  const int error = run(shm::agree_on_largest(*shm_group_, refused, &refused));
  if (error == 0 && refused == 0) shm_group_->set_reads(reads_.get());
  return error;
}

std::unique_ptr<ChannelGroup> Groups::group_of(uint32_t rank, std::vector<uint32_t> members) {
  return std::make_unique<ChannelGroup>(rank, std::move(members), places_.provider);
}

void Groups::make_all() {
  if (channels_ != nullptr) return;
  std::vector<uint32_t> members(places_.topology.ranks);
  std::iota(members.begin(), members.end(), 0u);
  channels_ = group_of(places_.topology.rank, std::move(members));
}

int Groups::measure(ChannelGroup& group) {
  LinkSpeed speed = group.speed();
  if (const int error = run(messages::measure(group, &speed)); error != 0) return error;
  group.set_speed(speed);
  return 0;
}

int Groups::make_channels() {
  if (is_measured_) return 0;
  make_all();
  if (const int error = measure(*channels_); error != 0) return error;
  is_measured_ = true;
  return 0;
}

int Groups::make_hierarchical() {
  if (hierarchical_ != nullptr) return 0;
  const Topology& topology = places_.topology;
  if (shm_group_ == nullptr)
    if (const int error = make_mapped(); error != 0) return error;
  make_all();
  if (topology.local_index < topology.fewest()) {
    std::vector<uint32_t> members;
    for (const auto& memory : topology.memories) members.push_back(memory[topology.local_index]);
    cross_node_group_ = group_of(topology.memory, std::move(members));
    if (const int error = measure(*cross_node_group_); error != 0) return error;
  }
  hierarchical_ =
      std::make_unique<HierarchicalGroup>(topology, *shm_group_, *channels_, cross_node_group_.get(), kBestParts);
  return 0;
}

CollectiveTask Groups::all_here() {
  if (shm_group_ == nullptr || kind_ != Kind::kMapped) make_all();
  return channels_ == nullptr ? shm::barrier(*shm_group_) : messages::barrier(*channels_);
}

CollectiveTask Groups::depart() {
  if (channels_ != nullptr)
    if (const int error = co_await messages::depart(*channels_); error != 0) co_return error;
  if (shm_group_ != nullptr) co_return co_await shm::depart(*shm_group_);
  co_return 0;
}

}  // namespace nupa::ccl
