// SPDX-License-Identifier: Apache-2.0
/// Connection setup of a stream, from an id to a connection, on either side.
#include <infiniband/ib.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>

#include "rsockets/limits.h"
#include "rsockets/listener.h"
#include "rsockets/service.h"
#include "rsockets/stream.h"

namespace nupa::rsockets {
namespace {

/// A resolution without an answer is repeated, each time with twice the timeout.
constexpr int kResolveAttempts = 6;
constexpr int kFirstResolveMs = 1000;
constexpr uint8_t kRetries = 7;  ///< the largest value of the three bits; for RNR it means no limit
constexpr uint32_t kMostRepostedTogether = 32;
constexpr uint32_t kMinSendBytes = 2 * kLowWater;

uint32_t power_of_two(uint32_t value) {
  uint32_t power = 1;
  while (power < value) power *= 2;
  return power;
}

}  // namespace

Stream::Stream(int domain) : Socket(domain, SOCK_STREAM) {}

std::unique_ptr<Stream> Stream::make(int domain) {
  std::unique_ptr<Stream> stream(new (std::nothrow) Stream(domain));
  if (!stream) {
    errno = ENOMEM;
    return nullptr;
  }
  const int rc = stream->channel_.open();
  if (rc != 0 || rdma_create_id(stream->channel_.get(), &stream->id_, stream.get(), RDMA_PS_TCP) != 0) {
    if (rc != 0) errno = -rc;
    stream->id_ = nullptr;
    return nullptr;
  }
  stream->id_->route.addr.src_addr.sa_family = static_cast<sa_family_t>(domain);
  return stream;
}

Stream::~Stream() {
  keep_alive_.stop();
  listener_.reset();
  mappings_.clear();
  if (qp_ != nullptr) rdma_destroy_qp(id_);
  buffers_.reset();
  source_.close();
  if (id_ != nullptr) rdma_destroy_id(id_);
}

int Stream::bind(const sockaddr* addr, socklen_t length) {
  if (length < sizeof(addr->sa_family) || length < address_length(addr)) return -EINVAL;
  if (phase() != Phase::kIdle) return -EINVAL;
  sockaddr_storage copy{};
  std::memcpy(&copy, addr, address_length(addr));
  return rdma_bind_addr(id_, reinterpret_cast<sockaddr*>(&copy)) == 0 ? 0 : -errno;
}

int Stream::connect(const sockaddr* addr, socklen_t length) {
  if (length < sizeof(addr->sa_family) || length < address_length(addr)) return -EINVAL;
  {
    std::lock_guard lock(connection_mutex_);
    switch (phase()) {
      case Phase::kIdle:
        break;
      case Phase::kConnected:
      case Phase::kDisconnected:
        return -EISCONN;
      case Phase::kListening:
        return -EINVAL;
      case Phase::kFailed: {
        const int error = take_error();
        return error != 0 ? -error : -ECONNABORTED;
      }
      default:
        return -EALREADY;
    }
    destination_ = {};
    std::memcpy(&destination_, addr, address_length(addr));
    attempts_ = 0;
    const int rc = begin_connect();
    if (rc != 0) return rc;
  }
  if (nonblocking()) {
    ready(0);  // on one host the answer may have arrived
    if (connecting()) return -EINPROGRESS;
  }
  return finish_connecting(false);
}

int Stream::begin_connect() {
  enter(Phase::kAddress);
  const int timeout = kFirstResolveMs << attempts_++;
  if (rdma_resolve_addr(id_, nullptr, reinterpret_cast<sockaddr*>(&destination_), timeout) == 0) return 0;
  const int error = errno;
  enter(Phase::kIdle);
  return -error;
}

int Stream::finish_connecting(bool nonblocking_call) {
  if (connecting()) {
    if (nonblocking_call) {
      ready(0);
      if (connecting()) return -EAGAIN;
    } else {
      const auto deadline = Deadline::in_ms(options_.send_timeout_ms);
      const int rc = wait_until(deadline, [this] { return !connecting(); });
      if (rc == -EAGAIN) return -EINPROGRESS;
      if (rc != 0) return rc;
    }
  }
  if (phase() != Phase::kFailed) return phase() == Phase::kIdle ? -ENOTCONN : 0;
  const int error = take_error();
  return error != 0 ? -error : -ECONNABORTED;
}

int Stream::create_endpoint() {
  ibv_device_attr device;
  if (ibv_query_device(id_->verbs, &device) != 0) return -errno;
  const uint32_t most = std::min<uint32_t>(
      kMaxRequests, static_cast<uint32_t>(std::max(std::min(device.max_qp_wr, device.max_cqe / 2), 1)));
  options_.send_requests = std::clamp(options_.send_requests, std::min(kMinRequests, most), most);
  options_.receive_requests = std::clamp(options_.receive_requests, std::min(kMinRequests, most), most);
  options_.send_bytes = power_of_two(std::clamp(options_.send_bytes, kMinSendBytes, kMaxBuffer));
  options_.receive_bytes = std::clamp<uint32_t>((options_.receive_bytes + 1) & ~1u, 2, kMaxBuffer);

  const int entries = static_cast<int>(options_.send_requests + options_.receive_requests);
  int rc = source_.open(id_->verbs, entries);
  if (rc != 0) return rc;
  ibv_qp_init_attr attr{};
  attr.send_cq = attr.recv_cq = source_.cq();
  attr.qp_type = IBV_QPT_RC;
  attr.cap.max_send_wr = options_.send_requests;
  attr.cap.max_recv_wr = options_.receive_requests;
  attr.cap.max_send_sge = 2;
  attr.cap.max_recv_sge = 1;
  attr.cap.max_inline_data = options_.inline_bytes;
  if (rdma_create_qp(id_, nullptr, &attr) != 0) return -errno;
  qp_ = id_->qp;
  inline_bytes_ = attr.cap.max_inline_data;

  buffers_ = StreamBuffers::make(id_->pd, options_.receive_bytes, options_.send_bytes, options_.mappings);
  if (!buffers_) return -errno;
  ring_.reset(options_.receive_bytes);
  window_.reset(options_.send_requests - kControlRequests, options_.send_bytes);
  targets_.reset(buffers_->targets(), {});
  receives_to_post_ = options_.receive_requests;
  repost_together_ = std::clamp<uint32_t>(options_.receive_requests / 8, 1, kMostRepostedTogether);
  repost_receives(true);
  return receives_to_post_ == 0 ? 0 : -ENOMEM;
}

ConnectData Stream::connect_data() const {
  ConnectData data{};
  data.version = kConnectVersion;
  data.flags = kConnectMappings | (kHostIsBigEndian ? kConnectBigEndian : 0);
  data.credits = htobe16(static_cast<uint16_t>(options_.receive_requests));
  data.mappings = scale_down(options_.mappings);
  data.targets = to_network({reinterpret_cast<uintptr_t>(buffers_->targets()), buffers_->rkey(), kTargets});
  data.first = to_network({reinterpret_cast<uintptr_t>(buffers_->receive()), buffers_->rkey(), ring_.half()});
  return data;
}

int Stream::take_connect_data(const void* bytes, size_t length) {
  ConnectData data;
  if (bytes == nullptr || length < sizeof data) return -ENOTSUP;
  std::memcpy(&data, bytes, sizeof data);
  if (data.version != kConnectVersion) return -ENOTSUP;
  peer_targets_ = from_network(data.targets);
  if (peer_targets_.length == 0) return -ENOTSUP;
  peer_next_target_ = 1 % peer_targets_.length;
  swap_tables_ = ((data.flags & kConnectBigEndian) != 0) != kHostIsBigEndian;
  if ((data.flags & kConnectMappings) != 0) {
    mappings_.set_table(
        {peer_targets_.addr + peer_targets_.length * sizeof(RemoteBuffer), peer_targets_.key, scale_up(data.mappings)});
  }
  targets_.reset(buffers_->targets(), from_network(data.first));
  window_.allow(be16toh(data.credits));
  return 0;
}

int Stream::send_request() {
  int rc = create_endpoint();
  if (rc != 0) return rc;
  const ConnectData data = connect_data();
  std::array<std::byte, kIpServiceHeader + sizeof data> request{};
  const size_t header = id_->route.addr.src_addr.sa_family == AF_IB ? kIpServiceHeader : 0;
  std::memcpy(request.data() + header, &data, sizeof data);
  rdma_conn_param param{};
  param.private_data = request.data();
  param.private_data_len = static_cast<uint8_t>(header + sizeof data);
  param.flow_control = 1;
  param.retry_count = kRetries;
  param.rnr_retry_count = kRetries;
  enter(Phase::kConnecting);
  return rdma_connect(id_, &param) == 0 ? 0 : -errno;
}

void Stream::handle_connection_events() {
  std::lock_guard lock(connection_mutex_);
  if (channel_.get() == nullptr) return;
  rdma_cm_event* event;
  while (rdma_get_cm_event(channel_.get(), &event) == 0) {
    handle_event(*event);
    rdma_ack_cm_event(event);
  }
}

void Stream::handle_event(const rdma_cm_event& event) {
  int rc = 0;
  switch (event.event) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
      if (phase() != Phase::kAddress) break;
      attempts_ = 1;
      enter(Phase::kRoute);
      rc = options_.route.empty() ? rdma_resolve_route(id_, kFirstResolveMs)
                                  : rdma_set_option(id_, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, options_.route.data(),
                                                    options_.route.size());
      if (rc != 0) fail(errno);
      break;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
      if (phase() != Phase::kRoute) break;
      rc = send_request();
      if (rc != 0) fail(-rc);
      break;
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR:
      retry_or_fail(error_of(event));
      break;
    case RDMA_CM_EVENT_ESTABLISHED:
      if (phase() == Phase::kFailed) rdma_disconnect(id_);  // the program gave up the attempt
      if (phase() != Phase::kConnecting) break;
      rc = take_connect_data(event.param.conn.private_data, event.param.conn.private_data_len);
      if (rc != 0) {
        rdma_disconnect(id_);
        fail(-rc);
      } else {
        become_connected();
      }
      break;
    case RDMA_CM_EVENT_DISCONNECTED:
      progress();  // take what the peer sent before it disconnected
      rdma_disconnect(id_);
      peer_left();
      break;
    case RDMA_CM_EVENT_REJECTED:
    case RDMA_CM_EVENT_UNREACHABLE:
    case RDMA_CM_EVENT_CONNECT_ERROR:
    case RDMA_CM_EVENT_DEVICE_REMOVAL:
      fail(error_of(event));
      break;
    default:
      break;
  }
}

void Stream::retry_or_fail(int error) {
  if (error != ETIMEDOUT || attempts_ > kResolveAttempts) {
    fail(error);
  } else if (phase() == Phase::kAddress) {
    const int rc = begin_connect();
    if (rc != 0) fail(-rc);
  } else if (rdma_resolve_route(id_, kFirstResolveMs << attempts_++) != 0) {
    fail(errno);
  }
}

void Stream::become_connected() {
  enter(Phase::kConnected);
  {
    std::lock_guard lock(completions_);
    update_credits();  // publishes the second half of the receive buffer
  }
  read_edges_.fetch_add(1);
  write_edges_.fetch_add(1);
  if (options_.keep_alive) start_keepalive();
  observers().notify();
}

void Stream::fail(int error) {
  if (phase() == Phase::kFailed || phase() == Phase::kDisconnected) return;
  if (!closing_.load()) error_.store(error);
  enter(Phase::kFailed);
  read_edges_.fetch_add(1);
  write_edges_.fetch_add(1);
  observers().notify();
}

bool Stream::give_up(int error) {
  std::lock_guard lock(connection_mutex_);
  if (phase() == Phase::kFailed) error_.store(error);
  if (connecting()) fail(error);
  return phase() == Phase::kFailed;
}

void Stream::peer_left() {
  if (phase() == Phase::kConnecting) return fail(ECONNREFUSED);
  if (phase() != Phase::kConnected) return;
  if (!(write_shut_.load() && peer_shut_.load())) return fail(ECONNRESET);
  enter(Phase::kDisconnected);
  read_edges_.fetch_add(1);
  write_edges_.fetch_add(1);
  observers().notify();
}

std::unique_ptr<Stream> Stream::answer(const Stream& listener, rdma_cm_id* id, const rdma_conn_param& request) {
  std::unique_ptr<Stream> stream(new (std::nothrow) Stream(listener.domain()));
  if (!stream) {
    rdma_reject(id, nullptr, 0);
    rdma_destroy_id(id);
    return nullptr;
  }
  stream->options_ = listener.options_;
  stream->id_ = id;
  int rc = stream->create_endpoint();
  const auto* data = static_cast<const std::byte*>(request.private_data);
  size_t length = request.private_data_len;
  if (id->route.addr.src_addr.sa_family == AF_IB && length >= kIpServiceHeader) {
    data += kIpServiceHeader;
    length -= kIpServiceHeader;
  }
  if (rc == 0) rc = stream->take_connect_data(data, length);
  const ConnectData reply = rc == 0 ? stream->connect_data() : ConnectData{};
  rdma_conn_param param = request;
  param.private_data = &reply;
  param.private_data_len = sizeof reply;
  param.rnr_retry_count = kRetries;
  stream->enter(Phase::kConnecting);
  if (rc == 0 && rdma_accept(id, &param) == 0) return stream;
  if (rc != 0) rdma_reject(id, nullptr, 0);
  return nullptr;
}

int Stream::established() {
  EventChannel own;
  const int rc = own.open();
  if (rc != 0) return rc;
  if (rdma_migrate_id(id_, own.get()) != 0) return -errno;
  channel_ = std::move(own);
  id_->context = this;
  become_connected();
  return 0;
}

}  // namespace nupa::rsockets
