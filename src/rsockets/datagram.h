// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "base/unique_fd.h"
#include "rsockets/datagram_destinations.h"
#include "rsockets/datagram_path.h"
#include "rsockets/settings.h"
#include "rsockets/socket.h"

namespace nupa::rsockets {

/// A datagram rsocket. Its UDP socket is its descriptor and finds peers. It has a UD queue pair for each local address
/// that it sends from or receives at. The first datagrams to a peer use the UDP socket and request the number of the
/// peer's queue pair. One lock protects everything.
class Datagram final : public Socket {
 public:
  /// Returns null and sets errno on failure.
  static std::unique_ptr<Datagram> make(int domain);

  int fd() const override { return udp_.get(); }
  int bind(const sockaddr* addr, socklen_t length) override;
  int listen(int backlog) override;
  int accept(Socket** accepted) override;
  int connect(const sockaddr* addr, socklen_t length) override;
  int shutdown(int how) override;
  void close() override;
  ssize_t send(Pieces data, int flags, const sockaddr* to, socklen_t length) override;
  ssize_t receive(Pieces room, int flags, sockaddr* from, socklen_t* length) override;
  int local_name(sockaddr* addr, socklen_t* length) override;
  int peer_name(sockaddr* addr, socklen_t* length) override;
  int set_option(int level, int name, const void* value, socklen_t length) override;
  int get_option(int level, int name, void* value, socklen_t* length) override;
  size_t readable_bytes() override;
  short ready(short events) override;
  void arm(std::vector<pollfd>* fds) override;
  void wake(int descriptor) override;

 private:
  /// A datagram in a buffer of its path, or a copy if it arrived over UDP.
  struct Received {
    DatagramPath* path;
    uint32_t slot;
    const std::byte* data;
    uint32_t length;
    std::vector<std::byte> copy;
    sockaddr_storage from;
  };

  explicit Datagram(int domain) : Socket(domain, SOCK_DGRAM) {}
  static int take_address(const sockaddr* addr, socklen_t length, DatagramAddress* result);
  int bind_somewhere();
  int source_for(const DatagramAddress& peer, sockaddr_storage* source);
  int path_for(const sockaddr_storage& local, DatagramPath** path);
  int destination_for(const DatagramAddress& peer, Destination** destination);
  /// Returns the destination that a send names, or the one that the rsocket is connected to.
  int destination_of(const sockaddr* to, socklen_t length, Destination** destination);
  void find_way(std::unique_lock<std::mutex>* lock, const DatagramAddress& peer);
  int send_by_udp(const Destination& destination, Pieces data, uint8_t op);
  void poll_paths();
  void read_udp();
  bool udp_due();
  void handle_udp(const std::byte* data, size_t bytes, const DatagramAddress& from);
  bool wanted(const sockaddr_storage& from) const;
  bool udp_has_room();
  bool has_room();

  std::mutex mutex_;
  base::UniqueFd udp_;
  std::vector<std::unique_ptr<DatagramPath>> paths_;
  Destinations destinations_;
  Destination* connected_ = nullptr;
  std::deque<Received> received_;
  int64_t udp_looked_ns_ = 0;
  bool udp_full_ = false;  ///< result of the last send over UDP
  bool shut_ = false;

  uint32_t send_requests_ = settings().send_requests;
  uint32_t receive_requests_ = settings().receive_requests;
  uint32_t send_bytes_ = settings().send_bytes;
  uint32_t receive_bytes_ = settings().receive_bytes;
  uint32_t inline_bytes_ = settings().inline_bytes;
  int64_t receive_timeout_ms_ = -1;
  int64_t send_timeout_ms_ = -1;
};

}  // namespace nupa::rsockets
