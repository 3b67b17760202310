// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The objects behind the structures of rdma/rdma_cma.h. Calls of programs enter in id.cc, address.cc, connect.cc and
/// others. Notifications of the communication manager enter in sink.cc and wait in the event channel (events.cc) until
/// the program asks for events. Only then, in the program's thread, are queue pairs changed.
///
/// Lock order: an id's mutex, the devices' lock, the communication manager's lock, the events' lock, the list of ids.
/// No verbs call is made with one of the last two held, so fork() can wait for these. fork() does not wait for the
/// others: the child gets new ones.
#include <infiniband/ib.h>
#include <nupa/connection_manager.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <nupa/reason.h>

#include "rdmacm/private.h"
#include "base/unique_fd.h"
#include "progress/event_descriptor.h"

#define NUPA_RDMACM extern "C" __attribute__((visibility("default")))

namespace nupa::rdmacm {

/// Converts an errno value to the library's return value: 0, or -1 with errno set. Prints the reason if that is wanted;
/// null: the one that the core has noted.
inline int answer(int error, const char* reason = nullptr, const char* call = __builtin_FUNCTION()) {
  if (error == 0) return 0;
  explain(call, error, reason);
  errno = error;
  return -1;
}
inline int answer(const Error& error, const char* call = __builtin_FUNCTION()) {
  return answer(error.code(), error.what(), call);
}

/// An address of any family that the program passed.
struct Endpoint {
  int family = AF_UNSPEC;
  Gid gid;  ///< IPv4 as ::ffff:a.b.c.d
  uint16_t port = 0;
  uint32_t scope = 0;
  uint64_t service_id = 0;  ///< AF_IB
  uint64_t mask = 0;        ///< AF_IB

  bool is_any() const;
};
/// Returns 0, EINVAL for a null address, or EAFNOSUPPORT for a family that RDMA does not support.
int read_address(const sockaddr* address, Endpoint* endpoint);
void write_address(const Endpoint& endpoint, sockaddr_storage* address);
/// Returns the service id of a port (IBTA annex A11).
uint64_t service_of(const Endpoint& endpoint, rdma_port_space ps);

/// A device, opened once for all ids of the process.
struct OpenDevice {
  ibv_context* verbs = nullptr;
  ibv_pd* pd = nullptr;
  ibv_xrcd* xrcd = nullptr;  ///< created at its first use
  ibv_device_attr attr{};
};
/// Returns null with errno set if the device cannot be opened.
OpenDevice* open_device(uint32_t index);
OpenDevice* device_of(const ibv_context* verbs);
ibv_xrcd* shared_xrcd(OpenDevice& device);
/// Returns null with errno set if this process cannot open one.
ConnectionManager* manager();
/// In a forked child: renews the locks of the devices and the manager, since threads of the parent may hold them.
void renew_devices_in_child();

struct Id;

/// An event for the program. The program's structure must be the first member.
struct Event {
  rdma_cm_event seen{};
  Id* id = nullptr;
  Id* listener = nullptr;
  std::array<std::byte, 256> data{};
  std::optional<ConnectionReply> reply;      ///< CONNECT_RESPONSE
  std::optional<ConnectionRequest> request;  ///< CONNECT_REQUEST
  std::optional<DatagramRequest> datagram;   ///< CONNECT_REQUEST of datagrams
  std::optional<DatagramReply> datagram_reply;
  struct Membership* membership = nullptr;

  Event(Id* id_, rdma_cm_event_type type, int status = 0);
  /// `seen.event` as a number. Numbers of later releases are not in the enumeration, so it must not be read as one.
  int number() const;
  void set_number(int number);
  void set_data(const std::byte* bytes, size_t length);
};

/// An event channel. The program's structure must be the first member.
struct Channel {
  rdma_event_channel shown{};
  /// Behind the descriptor that the program sees. A thread that signals it without the events' lock shares it.
  std::shared_ptr<progress::EventDescriptor> events;
  uint32_t unsignalled = 0;  ///< events in `waiting` that the descriptor does not count yet
  std::deque<std::unique_ptr<Event>> waiting;
  uint32_t readers = 0;  ///< threads inside rdma_get_cm_event()
  bool closed = false;
  Channel* next_spare = nullptr;
};

struct Membership {
  sockaddr_storage address{};
  Gid group;
  void* context = nullptr;
  bool send_only = false;  ///< its queue pair receives no packets of the group
  bool attached = false;   ///< written by the thread that takes the event, until the event is acknowledged
  uint32_t unacknowledged = 0;
};

enum class State : uint8_t {
  kIdle,
  kBound,
  kAddressResolved,
  kRouteResolved,
  kConnecting,  ///< a REQ or SIDR_REQ is in progress
  kReplied,     ///< the REP has arrived, the connection is not established
  kRequested,   ///< made for a request that is not accepted yet
  kAccepting,
  kConnected,
  kDisconnected,
  kListening,
};

struct FreeAddresses {
  void operator()(rdma_addrinfo* list) const { rdma_freeaddrinfo(list); }
};

/// An identifier. The program's structure must be the first member.
struct Id {
  rdma_cm_id shown{};
  const pid_t process = getpid();
  bool sync;         ///< the program gave no channel, so calls block
  std::mutex mutex;  ///< protects `state` and the fields that calls change
  State state = State::kIdle;
  ConnectionId connection = 0;

  // Addresses.
  Endpoint source;
  Endpoint destination;
  ConnectionRoute route;
  bool has_device = false;
  bool has_service = false;  ///< the manager holds a service for this id
  ibv_sa_path_rec path_rec{};

  // Options.
  uint8_t tos = 0;
  bool has_tos = false;
  bool reuse = false;
  bool af_only = false;
  std::optional<uint8_t> ack_timeout;
  ibv_ece local_ece{};

  // Parameters of the connection that both sides agreed on.
  uint32_t remote_qpn = 0;
  uint32_t receive_psn = 0;  ///< first PSN of the peer's packets, as this side has requested
  uint32_t send_psn = 0;     ///< first PSN of this side's packets, as the peer has requested
  uint32_t qkey = 0;
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
  uint8_t retry_count = 7;
  uint8_t rnr_retry_count = 7;
  bool agreed = false;  ///< the fields above belong to a connection
  bool connect_failed = false;

  // Used by rdma_create_ep.
  std::optional<ibv_qp_init_attr> child_qp;
  ibv_pd* child_pd = nullptr;
  std::vector<std::byte> connect_data;

  std::vector<std::unique_ptr<Membership>> memberships;

  // Used by rdma_resolve_addrinfo.
  bool is_resolving = false;  ///< the program has not taken the result
  std::unique_ptr<rdma_addrinfo, FreeAddresses> resolved;

  // Protected by the events' lock.
  int backlog = 0;
  int waiting_requests = 0;
  uint32_t unacknowledged = 0;

  explicit Id(bool sync_) : sync(sync_) {}
  uint64_t owner() const { return reinterpret_cast<uint64_t>(this); }
  Channel* channel() const { return reinterpret_cast<Channel*>(shown.channel); }
  bool is_datagram() const { return shown.qp_type == IBV_QPT_UD; }
};
/// Returns null with EINVAL if this is no id, or was destroyed. Some programs use an id after they have destroyed it.
Id* id_of(const rdma_cm_id* id);

/// Returns the lowest number for descriptors of this library, if one is set.
int lowest_descriptor();

// events.cc
std::mutex& events_mutex();
/// In a forked child: renews the condition on which threads of the parent may be waiting.
void renew_events_in_child();
/// Adds an event to its channel. The events' lock is held, and the caller calls signal_events() after its release.
void push_locked(std::unique_ptr<Event> event);
/// Makes the descriptors count the events that were added, which wakes the threads that wait for them. Called without
/// locks: a thread that is woken while they are held would find them held.
void signal_events();
/// Adds an event and signals it.
void push(Id& id, rdma_cm_event_type type, int status = 0);
void push(std::unique_ptr<Event> event);
/// With a synchronous id: waits for the event that completes the call. Returns the event's result: 0, or -1 with errno
/// set.
int wait_for_event(Id& id);
/// Drops the id's waiting events, and waits until the program has acknowledged the events that it got.
void settle_events(Id& id);
/// The same for the events of a membership.
void settle_events(Id& id, const Membership& membership);
/// Prints why an event reports a failure, if that is wanted (nupa/reason.h).
void explain_event(const Event& event);
/// Returns the ids of requests that the program has not taken from the queue.
std::vector<Id*> take_requests(Id& listener);

// id.cc
Id* make_id(bool sync, rdma_event_channel* channel, void* context, rdma_port_space ps, ibv_qp_type type);
void destroy(Id* id);

// address.cc
/// Assigns the id to the device of `route`. Returns an errno value.
int use_device(Id& id, const ConnectionRoute& route);
/// Gives a device to an id that is bound to a loopback address. Such an id shows no device, because no device has the
/// address, but may need one later. Returns an errno value.
int use_stand_in(Id& id);
void show_addresses(Id& id);
void fill_path_record(Id& id);

// qp.cc
/// Moves the queue pair through INIT and RTR to RTS. Returns an errno value.
int bring_up(Id& id);
int to_error(Id& id);
/// Returns an errno value.
int fill_attributes(Id& id, ibv_qp_attr* attr, int* mask);
constexpr size_t kIpHeaderBytes = 36;           ///< at the beginning of private data, for IP services (IBTA A11)
constexpr uint32_t kDatagramQkey = 0x01234567;  ///< of port space UDP, as in rdma_cm

// connect.cc
/// Returns a PSN for a queue pair to start with. Each connection has a different one.
uint32_t random_psn();
/// Does the work for a REP in the program's thread. Sets the event's type and status.
void finish_reply(Id& id, Event& event);

// sink.cc
ConnectionSink& sink();

// multicast.cc
void finish_join(Event& event);
/// Called after the id's events are settled.
void leave_all(Id& id);

}  // namespace nupa::rdmacm
