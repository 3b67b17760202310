#pragma once
/// What stands behind the structures of rdma/rdma_cma.h. A program's calls come in id.cc, address.cc, connect.cc and
/// others; what the communication manager tells comes in sink.cc and waits in the event channel (events.cc) until the
/// program asks for it, and only then, in the program's thread, are queue pairs touched.
///
/// Order of locks: an id's own, the devices', the communication manager's, the events', the list of ids. No call of
/// verbs is made with one of the last two, so fork() waits for these. fork() does not wait for the others: the child
/// gets new ones.
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

#include "rdmacm/private.h"
#include "base/unique_fd.h"
#include "progress/event_descriptor.h"

#define NUPA_RDMACM extern "C" __attribute__((visibility("default")))

namespace nupa::rdmacm {

/// As the library's functions answer: 0, or -1 with errno.
inline int answer(int error) {
  if (error == 0) return 0;
  errno = error;
  return -1;
}

/// An address of a program's, whatever its family.
struct Endpoint {
  int family = AF_UNSPEC;
  Gid gid;  ///< IPv4 as ::ffff:a.b.c.d
  uint16_t port = 0;
  uint32_t scope = 0;
  uint64_t service_id = 0;  ///< AF_IB
  uint64_t mask = 0;        ///< AF_IB

  bool is_any() const;
};
/// EINVAL: null; EAFNOSUPPORT: a family that RDMA has not.
int read_address(const sockaddr* address, Endpoint* endpoint);
void write_address(const Endpoint& endpoint, sockaddr_storage* address);
/// The service id of a port (IBTA annex A11).
uint64_t service_of(const Endpoint& endpoint, rdma_port_space ps);

/// One device, opened once for all ids of the process.
struct OpenDevice {
  ibv_context* verbs = nullptr;
  ibv_pd* pd = nullptr;
  ibv_xrcd* xrcd = nullptr;  ///< made when it is first needed
  ibv_device_attr attr{};
};
/// Null with errno: it cannot be opened.
OpenDevice* open_device(uint32_t index);
OpenDevice* device_of(const ibv_context* verbs);
ibv_xrcd* shared_xrcd(OpenDevice& device);
/// Null with errno: there is none in this process.
ConnectionManager* manager();
/// In a fork's child: threads of the parent may hold the locks of what is above.
void renew_devices_in_child();

struct Id;

/// An event on its way to the program. Starts with what the program sees.
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
  void set_data(const std::byte* bytes, size_t length);
};

/// The structure that the program has comes first.
struct Channel {
  rdma_event_channel shown{};
  std::unique_ptr<progress::EventDescriptor> events;  ///< behind the descriptor that is shown
  std::deque<std::unique_ptr<Event>> waiting;
  uint32_t readers = 0;  ///< threads inside rdma_get_cm_event()
  bool closed = false;
  Channel* next_spare = nullptr;
};

struct Membership {
  sockaddr_storage address{};
  Gid group;
  void* context = nullptr;
  bool send_only = false;  ///< its queue pair gets nothing
  bool attached = false;   ///< of the thread that takes the event, until that is acknowledged
  uint32_t unacknowledged = 0;
};

enum class State : uint8_t {
  kIdle,
  kBound,
  kAddressResolved,
  kRouteResolved,
  kConnecting,  ///< a REQ or SIDR_REQ is under way
  kReplied,     ///< the REP is here, the connection is not established
  kRequested,   ///< made by a request, not accepted yet
  kAccepting,
  kConnected,
  kDisconnected,
  kListening,
};

/// The structure that the program has comes first.
struct Id {
  rdma_cm_id shown{};
  const pid_t process = getpid();
  bool sync;         ///< the program gave no channel: calls wait
  std::mutex mutex;  ///< of `state` and what calls change
  State state = State::kIdle;
  ConnectionId connection = 0;

  // Addresses.
  Endpoint source;
  Endpoint destination;
  ConnectionRoute route;
  bool has_device = false;
  bool has_service = false;  ///< the manager keeps one for it
  ibv_sa_path_rec path_rec{};

  // Options.
  uint8_t tos = 0;
  bool has_tos = false;
  bool reuse = false;
  bool af_only = false;
  std::optional<uint8_t> ack_timeout;
  ibv_ece local_ece{};

  // What the two ends agreed on.
  uint32_t remote_qpn = 0;
  uint32_t receive_psn = 0;  ///< the first of the other end's packets, as this end has asked for
  uint32_t send_psn = 0;     ///< the first of this end's, as the other one has
  uint32_t qkey = 0;
  uint8_t responder_resources = 0;
  uint8_t initiator_depth = 0;
  uint8_t retry_count = 7;
  uint8_t rnr_retry_count = 7;
  bool agreed = false;  ///< the fields above are of a connection
  bool connect_failed = false;

  // For rdma_create_ep.
  std::optional<ibv_qp_init_attr> child_qp;
  ibv_pd* child_pd = nullptr;
  std::vector<std::byte> connect_data;

  std::vector<std::unique_ptr<Membership>> memberships;

  // Under the events' lock.
  int backlog = 0;
  int waiting_requests = 0;
  uint32_t unacknowledged = 0;

  explicit Id(bool sync_) : sync(sync_) {}
  uint64_t owner() const { return reinterpret_cast<uint64_t>(this); }
  Channel* channel() const { return reinterpret_cast<Channel*>(shown.channel); }
  bool is_datagram() const { return shown.qp_type == IBV_QPT_UD; }
};
/// Null with EINVAL: it is no id (any more). There are programs that go on with one that they have destroyed.
Id* id_of(const rdma_cm_id* id);

/// The number from which on descriptors of this library lie, where there are such.
int lowest_descriptor();

// events.cc
std::mutex& events_mutex();
/// In a fork's child: threads of the parent may be waiting.
void renew_events_in_child();
/// Under the events' lock.
void push_locked(std::unique_ptr<Event> event);
void push(std::unique_ptr<Event> event);
void push(Id& id, rdma_cm_event_type type, int status = 0);
/// With a synchronous id: waits for the event that ends the call, and says what came of it. 0, or -1 with errno.
int wait_for_event(Id& id);
/// Takes away what waits for the id, and waits until the program has acknowledged what it got.
void settle_events(Id& id);
/// The same for those of a membership.
void settle_events(Id& id, const Membership& membership);
/// Gives the children of requests that nobody asked for back.
std::vector<Id*> take_requests(Id& listener);

// id.cc
Id* make_id(bool sync, rdma_event_channel* channel, void* context, rdma_port_space ps, ibv_qp_type type);
void destroy(Id* id);

// address.cc
/// Ties the id to the device of `route`. errno value.
int use_device(Id& id, const ConnectionRoute& route);
/// An id that is bound to a loopback address shows no device, since none has it, but gets one when it needs it. errno
/// value.
int use_stand_in(Id& id);
void show_addresses(Id& id);
void fill_path_record(Id& id);

// qp.cc
/// To RTS, or to RTR and what is left of it. errno value.
int bring_up(Id& id);
int to_error(Id& id);
/// errno value.
int fill_attributes(Id& id, ibv_qp_attr* attr, int* mask);
constexpr uint32_t kDatagramQkey = 0x01234567;  ///< of port space UDP, as rdma_cm has it

// connect.cc
/// For a queue pair to start with; each connection has its own.
uint32_t random_psn();
/// What has to be done in the program's thread when a REP is here. Sets the event's type and status.
void finish_reply(Id& id, Event& event);

// sink.cc
ConnectionSink& sink();

// multicast.cc
void finish_join(Event& event);
/// After the id's events are settled.
void leave_all(Id& id);

}  // namespace nupa::rdmacm
