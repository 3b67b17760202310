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

/// A peer's address as a key that compares.
struct DatagramAddress {
  sockaddr_storage value{};
  bool operator<(const DatagramAddress& other) const;
  bool operator==(const DatagramAddress& other) const { return !(*this < other) && !(other < *this); }
};

/// A peer of a datagram rsocket.
struct Destination {
  DatagramAddress address;
  DatagramPath* path = nullptr;
  ibv_ah* ah = nullptr;                ///< null: not resolved; then datagrams go over UDP
  uint32_t limit = 0;                  ///< bytes of a datagram that fits the path's MTU; set with ah
  std::optional<uint32_t> queue_pair;  ///< as the peer said last
  bool resolving = false;              ///< a send does that now, without the rsocket's lock
  bool sent_to = false;                ///< by the program
  std::list<Destination*>::iterator place;
};

/// The most peers that a datagram rsocket knows at once: some 8 MiB. Anybody can send from as many addresses as it
/// likes.
constexpr size_t kMostDestinations = 16384;

/// The peers of a datagram rsocket. When there are too many, those are forgotten first that the program has not sent
/// to, and of these the longest silent; then those that it has not sent to for longest. This costs a forgotten peer no
/// datagram: the next one to it goes over UDP and asks for its queue pair, as the first one did. Not thread-safe.
class Destinations {
 public:
  /// most: at least 2.
  explicit Destinations(size_t most = kMostDestinations) : most_(most) {}
  ~Destinations();
  Destinations(const Destinations&) = delete;
  Destinations& operator=(const Destinations&) = delete;

  /// Null: not known.
  Destination* find(const DatagramAddress& address);
  /// One that is not known yet. Forgets another one if there are too many.
  Destination* add(const DatagramAddress& address, DatagramPath* path);
  /// The peer has sent something by itself.
  void heard(Destination* destination);
  /// The program sends to it.
  void used(Destination* destination);
  /// Is not forgotten until another one is kept; null: none is.
  void keep(Destination* destination);
  size_t count() const { return known_.size(); }

 private:
  void forget_one();

  const size_t most_;
  std::map<DatagramAddress, Destination> known_;
  // In the order in which they are forgotten.
  std::list<Destination*> not_sent_to_;
  std::list<Destination*> sent_to_;
  const Destination* kept_ = nullptr;
};

}  // namespace nupa::rsockets
