// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <infiniband/verbs.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>

namespace nupa::rsockets {

class DatagramPath;

/// A peer's address as a map key.
struct DatagramAddress {
  sockaddr_storage value{};
  bool operator<(const DatagramAddress& other) const;
  bool operator==(const DatagramAddress& other) const { return !(*this < other) && !(other < *this); }
};

/// A peer of a datagram rsocket.
struct Destination {
  DatagramAddress address;
  DatagramPath* path = nullptr;
  ibv_ah* ah = nullptr;                ///< null: not resolved, so datagrams use UDP
  uint32_t limit = 0;                  ///< most bytes of a datagram for the path's MTU; set with ah
  std::optional<uint32_t> queue_pair;  ///< from the peer's last UDP header
  bool resolving = false;              ///< a send resolves the path now, without the rsocket's lock
  bool sent_to = false;                ///< the program has sent to this peer
  std::list<Destination*>::iterator place;
};

/// The most peers that a datagram rsocket keeps at once, which takes about 8 MiB. The limit is needed because anybody
/// can send from any number of addresses.
constexpr size_t kMostDestinations = 16384;

/// The peers of a datagram rsocket. When there are too many, peers that the program never sent to are dropped first,
/// the longest silent one before the others. After those, the one least recently sent to is dropped. No datagram is
/// lost by this: the next one to that peer uses UDP and requests its queue pair again. Not thread-safe.
class Destinations {
 public:
  /// `most` is at least 2.
  explicit Destinations(size_t most = kMostDestinations) : most_(most) {}
  ~Destinations();
  Destinations(const Destinations&) = delete;
  Destinations& operator=(const Destinations&) = delete;

  /// Returns null if the address is unknown.
  Destination* find(const DatagramAddress& address);
  /// Adds an address that is not in the table. Drops another one if there are too many.
  Destination* add(const DatagramAddress& address, DatagramPath* path);
  /// Records that the peer has sent something.
  void heard(Destination* destination);
  /// Records that the program sends to this peer.
  void used(Destination* destination);
  /// Protects this peer from being dropped until the next keep(). Null protects no peer.
  void keep(Destination* destination);
  size_t count() const { return known_.size(); }

 private:
  void forget_one();

  const size_t most_;
  std::map<DatagramAddress, Destination> known_;
  // Both lists are in the order in which peers are dropped.
  std::list<Destination*> not_sent_to_;
  std::list<Destination*> sent_to_;
  const Destination* kept_ = nullptr;
};

}  // namespace nupa::rsockets
