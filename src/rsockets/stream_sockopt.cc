// SPDX-License-Identifier: Apache-2.0
/// Options and names of stream rsockets.
#include <infiniband/sa.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "rsockets/limits.h"
#include "rsockets/option_value.h"
#include "rsockets/stream.h"

namespace nupa::rsockets {
namespace {

constexpr int kKeepIdleSeconds = 7200;  ///< Linux's default, used if /proc cannot be read
constexpr int kMaxSegment = 2048;       ///< reported before there is a path
/// Converts a path record of the CM to the form of RDMA_ROUTE. MTU and rate have the selector "exactly".
constexpr uint8_t kExactly = 2 << 6;

ibv_path_data convert(const ibv_sa_path_rec& record) {
  ibv_path_data data{};
  data.flags = IBV_PATH_FLAG_GMP | IBV_PATH_FLAG_PRIMARY | IBV_PATH_FLAG_BIDIRECTIONAL;
  data.path.dgid = record.dgid;
  data.path.sgid = record.sgid;
  data.path.dlid = record.dlid;
  data.path.slid = record.slid;
  data.path.flowlabel_hoplimit = htobe32((be32toh(record.flow_label) << 8) | record.hop_limit);
  data.path.tclass = record.traffic_class;
  data.path.reversible_numpath = static_cast<uint8_t>((record.reversible != 0 ? 0x80 : 0) | 1);
  data.path.pkey = record.pkey;
  data.path.qosclass_sl = htobe16(record.sl);
  data.path.mtu = static_cast<uint8_t>(record.mtu | kExactly);
  data.path.rate = static_cast<uint8_t>(record.rate | kExactly);
  data.path.packetlifetime = static_cast<uint8_t>(record.packet_life_time | kExactly);
  return data;
}

}  // namespace

int Stream::local_name(sockaddr* addr, socklen_t* length) {
  give_address(rdma_get_local_addr(id_), addr, length);
  return 0;
}

int Stream::peer_name(sockaddr* addr, socklen_t* length) {
  if (phase() < Phase::kConnected) return -ENOTCONN;
  give_address(rdma_get_peer_addr(id_), addr, length);
  return 0;
}

int Stream::keepalive_seconds() const {
  if (options_.keep_idle > 0) return options_.keep_idle;
  int seconds = kKeepIdleSeconds;
  if (std::FILE* file = std::fopen("/proc/sys/net/ipv4/tcp_keepalive_time", "re")) {
    if (std::fscanf(file, "%d", &seconds) != 1) seconds = kKeepIdleSeconds;
    std::fclose(file);
  }
  return std::max(seconds, 1);
}

int Stream::set_option(int level, int name, const void* value, socklen_t length) {
  if (level == SOL_SOCKET) return set_socket_option(name, value, length);
  if (level == SOL_RDMA) return set_rdma_option(name, value, length);
  int number;
  const int rc = read_option(value, length, &number);
  if (rc != 0) return rc;
  if (level == IPPROTO_TCP) return set_tcp_option(name, number);
  if (level != IPPROTO_IPV6 || name != IPV6_V6ONLY) return -ENOPROTOOPT;
  if (rdma_set_option(id_, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &number, sizeof number) != 0) return -errno;
  options_.v6_only = number != 0;
  return 0;
}

int Stream::set_socket_option(int name, const void* value, socklen_t length) {
  if (name == SO_LINGER) {
    linger given;
    const int rc = read_option(value, length, &given);
    if (rc == 0) options_.linger_seconds = given.l_onoff == 0 ? -1 : given.l_linger;
    return rc;
  }
  if (name == SO_RCVTIMEO || name == SO_SNDTIMEO) {
    timeval time;
    const int rc = read_option(value, length, &time);
    if (rc == 0) (name == SO_RCVTIMEO ? options_.receive_timeout_ms : options_.send_timeout_ms) = to_ms(time);
    return rc;
  }
  int number;
  const int rc = read_option(value, length, &number);
  if (rc != 0) return rc;
  // As in Linux, the number is doubled, because half of it is for the kernel's bookkeeping.
  const auto bytes = static_cast<uint32_t>(std::clamp<int64_t>(number * INT64_C(2), 2 * kLowWater, kMaxBuffer));
  switch (name) {
    case SO_REUSEADDR:
      options_.reuse_address = number != 0;
      if (rdma_set_option(id_, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &number, sizeof number) == 0) return 0;
      // The option has no effect once the socket is bound, but programs set it on accepted sockets, too.
      return phase() == Phase::kIdle && errno != ENOSYS && id_->verbs == nullptr ? -errno : 0;
    case SO_REUSEPORT:
      options_.reuse_port = number != 0;
      return 0;
    case SO_RCVBUF:
      if (!buffers_) options_.receive_bytes = bytes;
      return 0;
    case SO_SNDBUF:
      if (!buffers_) options_.send_bytes = bytes;
      return 0;
    case SO_KEEPALIVE:
      options_.keep_alive = number != 0;
      if (options_.keep_alive && connected()) start_keepalive();
      if (!options_.keep_alive) keep_alive_.stop();
      return 0;
    case SO_OOBINLINE:
      options_.out_of_band_inline = number != 0;
      return 0;
    case SO_PRIORITY:
    case SO_RCVLOWAT:
      return 0;
    default:
      return -ENOPROTOOPT;
  }
}

int Stream::set_tcp_option(int name, int value) {
  switch (name) {
    case TCP_NODELAY:
      options_.no_delay = value != 0;
      return 0;
    case TCP_KEEPIDLE:
      if (value <= 0) return -EINVAL;
      options_.keep_idle = value;
      if (options_.keep_alive && connected()) start_keepalive();
      return 0;
    case TCP_KEEPINTVL:
      options_.keep_interval = value;
      return 0;
    case TCP_KEEPCNT:
      options_.keep_count = value;
      return 0;
    case TCP_MAXSEG:
      return 0;
    default:
      return -ENOPROTOOPT;
  }
}

int Stream::set_rdma_option(int name, const void* value, socklen_t length) {
  if (phase() != Phase::kIdle && phase() != Phase::kListening) return -EINVAL;
  if (name == RDMA_ROUTE) {
    if (value == nullptr || length == 0 || length % sizeof(ibv_path_data) != 0) return -EINVAL;
    const auto* bytes = static_cast<const std::byte*>(value);
    options_.route.assign(bytes, bytes + length);
    return 0;
  }
  int number;
  const int rc = read_option(value, length, &number);
  if (rc != 0) return rc;
  if (number < 0) return -EINVAL;
  const auto requests = std::min(static_cast<uint32_t>(number), kMaxRequests);
  switch (name) {
    case RDMA_SQSIZE:
      options_.send_requests = requests;
      return 0;
    case RDMA_RQSIZE:
      options_.receive_requests = requests;
      return 0;
    case RDMA_INLINE:
      options_.inline_bytes = requests;
      return 0;
    case RDMA_IOMAPSIZE:
      options_.mappings = scale_up(scale_down(static_cast<uint32_t>(number)));
      return 0;
    default:
      return -ENOPROTOOPT;
  }
}

int Stream::get_option(int level, int name, void* value, socklen_t* length) {
  if (level == SOL_SOCKET) return get_socket_option(name, value, length);
  if (level == SOL_RDMA) return get_rdma_option(name, value, length);
  if (level == IPPROTO_TCP) return get_tcp_option(name, value, length);
  if (level != IPPROTO_IPV6 || name != IPV6_V6ONLY) return -ENOPROTOOPT;
  return give_option(static_cast<int>(options_.v6_only), value, length);
}

int Stream::get_socket_option(int name, void* value, socklen_t* length) {
  const auto give = [&](auto number) { return give_option(static_cast<int>(number), value, length); };
  switch (name) {
    case SO_ERROR:
      if (connecting()) ready(0);
      return give(take_error());
    case SO_TYPE:
      return give(SOCK_STREAM);
    case SO_DOMAIN:
      return give(domain());
    case SO_PROTOCOL:
      return give(IPPROTO_TCP);
    case SO_ACCEPTCONN:
      return give(phase() == Phase::kListening);
    case SO_REUSEADDR:
      return give(options_.reuse_address);
    case SO_REUSEPORT:
      return give(options_.reuse_port);
    case SO_KEEPALIVE:
      return give(options_.keep_alive);
    case SO_OOBINLINE:
      return give(options_.out_of_band_inline);
    case SO_RCVBUF:
      return give(options_.receive_bytes);
    case SO_SNDBUF:
      return give(options_.send_bytes);
    case SO_RCVLOWAT:
      return give(1);
    case SO_LINGER: {
      const linger result{options_.linger_seconds >= 0, std::max(options_.linger_seconds, 0)};
      return give_option(result, value, length);
    }
    case SO_RCVTIMEO:
      return give_option(to_timeval(options_.receive_timeout_ms), value, length);
    case SO_SNDTIMEO:
      return give_option(to_timeval(options_.send_timeout_ms), value, length);
    default:
      return -ENOPROTOOPT;
  }
}

int Stream::get_tcp_option(int name, void* value, socklen_t* length) {
  const auto give = [&](auto number) { return give_option(static_cast<int>(number), value, length); };
  switch (name) {
    case TCP_NODELAY:
      return give(options_.no_delay);
    case TCP_KEEPIDLE:
      return give(keepalive_seconds());
    case TCP_KEEPINTVL:
      return give(options_.keep_interval > 0 ? options_.keep_interval : 1);
    case TCP_KEEPCNT:
      return give(options_.keep_count > 0 ? options_.keep_count : 1);
    case TCP_MAXSEG:
      return give(id_->route.num_paths != 0 ? 128 << id_->route.path_rec->mtu : kMaxSegment);
    default:
      return -ENOPROTOOPT;
  }
}

int Stream::get_rdma_option(int name, void* value, socklen_t* length) {
  const auto give = [&](auto number) { return give_option(static_cast<int>(number), value, length); };
  switch (name) {
    case RDMA_SQSIZE:
      return give(options_.send_requests);
    case RDMA_RQSIZE:
      return give(options_.receive_requests);
    case RDMA_INLINE:
      return give(inline_bytes_ != 0 ? inline_bytes_ : options_.inline_bytes);
    case RDMA_IOMAPSIZE:
      return give(options_.mappings);
    case RDMA_ROUTE:
      break;
    default:
      return -ENOPROTOOPT;
  }
  if (value == nullptr || length == nullptr) return -EFAULT;
  if (!options_.route.empty()) {
    if (*length < options_.route.size()) return -EINVAL;
    *length = static_cast<socklen_t>(options_.route.size());
    std::memcpy(value, options_.route.data(), options_.route.size());
    return 0;
  }
  if (*length < sizeof(ibv_path_data)) return -EINVAL;
  const auto paths =
      std::min(*length / static_cast<socklen_t>(sizeof(ibv_path_data)), static_cast<socklen_t>(id_->route.num_paths));
  for (socklen_t i = 0; i < paths; ++i) {
    const ibv_path_data data = convert(id_->route.path_rec[i]);
    std::memcpy(static_cast<std::byte*>(value) + i * sizeof data, &data, sizeof data);
  }
  *length = paths * static_cast<socklen_t>(sizeof(ibv_path_data));
  return 0;
}

}  // namespace nupa::rsockets
