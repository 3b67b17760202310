// SPDX-License-Identifier: Apache-2.0
// Orders of events that are rare between threads. This program has its own ppoll() and rdma_get_cm_event(), with which
// rsockets wait: a test acts just before or after one of these calls.
#include <dlfcn.h>
#include <sys/resource.h>

#include <atomic>
#include <functional>
#include <set>
#include <utility>

#include "api_datagrams.h"
#include "api_peer.h"

using namespace nupa::rsockets_test;

namespace {

/// What a thread does at the calls that rsockets make for it. Each is taken once.
struct Steps {
  std::function<void()> before_sleep;
  int seconds = 0;  ///< if not 0: that sleep is no longer
  std::function<void(int result)> after_sleep;
  std::function<void()> before_event;
  std::function<void(rdma_cm_event*)> after_event;
  int full_udp = -1;  ///< this descriptor has no room for a datagram until it is another one
};
thread_local Steps steps;

template <class... Arguments>
void take_step(std::function<void(Arguments...)>& step, Arguments... arguments) {
  if (step) std::exchange(step, nullptr)(arguments...);
}

template <class Function>
Function* next_of(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

// By label, since headers may have an inline ppoll().
extern "C" __attribute__((visibility("default"))) int ppoll_in_steps(pollfd* fds, nfds_t count, const timespec* limit,
                                                                     const sigset_t* mask) __asm__("ppoll");
int ppoll_in_steps(pollfd* fds, nfds_t count, const timespec* limit, const sigset_t* mask) {
  static auto* const real = next_of<int(pollfd*, nfds_t, const timespec*, const sigset_t*)>("ppoll");
  if (limit != nullptr && limit->tv_sec == 0 && limit->tv_nsec == 0) {  // a look
    if (count == 1 && fds->fd == steps.full_udp && fds->events == POLLOUT) return 0;
    return real(fds, count, limit, mask);
  }
  take_step(steps.before_sleep);
  const timespec shorter{std::exchange(steps.seconds, 0), 0};
  const int result = real(fds, count, shorter.tv_sec != 0 ? &shorter : limit, mask);
  const int error = errno;
  take_step(steps.after_sleep, result);
  errno = error;
  return result;
}

extern "C" __attribute__((visibility("default"))) ssize_t sendto_in_steps(int fd, const void* data, size_t length,
                                                                          int flags, const sockaddr* to,
                                                                          socklen_t to_length) __asm__("sendto");
ssize_t sendto_in_steps(int fd, const void* data, size_t length, int flags, const sockaddr* to, socklen_t to_length) {
  static auto* const real = next_of<ssize_t(int, const void*, size_t, int, const sockaddr*, socklen_t)>("sendto");
  if (fd != steps.full_udp) return real(fd, data, length, flags, to, to_length);
  errno = EAGAIN;
  return -1;
}

extern "C" __attribute__((visibility("default"))) int cm_event_in_steps(
    rdma_event_channel* channel, rdma_cm_event** event) __asm__("rdma_get_cm_event");
int cm_event_in_steps(rdma_event_channel* channel, rdma_cm_event** event) {
  static auto* const real = next_of<int(rdma_event_channel*, rdma_cm_event**)>("rdma_get_cm_event");
  take_step(steps.before_event);
  const int result = real(channel, event);
  const int error = errno;
  if (result == 0) take_step(steps.after_event, *event);
  errno = error;
  return result;
}

namespace {

/// More looks than an rsocket makes before it looks for events of its connection.
constexpr int kManyLooks = 4096;

/// Of two threads that sleep on one rsocket, the first one takes the event that the second one relies on. `send` sends
/// the rsocket a byte.
template <class Send>
void take_an_event_of_another(int fd, Send send) {
  // The first thread sleeps until something comes, and before it looks this thread reads that. Then the second thread
  // is about to sleep until the event that is still there. The first one takes it and goes away.
  std::atomic<bool> sleeps{false}, woken{false}, may_take{false}, relies{false}, taken{false};
  std::atomic<int> result{-1};
  int first_found = -1, second_found = -1;
  constexpr int kShortMs = 1;
  std::thread first([&] {
    steps.before_sleep = [&] {
      sleeps = true;
      // Its time must not be over before something has come.
      EXPECT_TRUE(await([&] { return woken.load(); }));
    };
    steps.after_sleep = [&](int) { EXPECT_TRUE(await([&] { return may_take.load(); })); };
    // On a busy machine its time may be over before it sleeps; then it polls again.
    EXPECT_TRUE(await([&] {
      pollfd entry{fd, POLLIN, 0};
      first_found = rpoll(&entry, 1, kShortMs);
      return sleeps.load();
    }));
    steps = {};
    taken = true;
  });
  EXPECT_TRUE(await([&] { return sleeps.load(); }));
  const auto over = std::chrono::steady_clock::now() + std::chrono::milliseconds(kShortMs);
  send();
  char c;
  EXPECT_TRUE(await([&] { return rrecv(fd, &c, 1, MSG_DONTWAIT) == 1; }));
  woken = true;
  EXPECT_TRUE(await([&] { return std::chrono::steady_clock::now() > over; }));
  std::thread second([&] {
    steps.before_sleep = [&] {
      relies = true;
      EXPECT_TRUE(await([&] { return taken.load(); }));
      steps.seconds = 1;
      steps.after_sleep = [&](int count) { result = count; };
    };
    pollfd entry{fd, POLLIN, 0};
    second_found = rpoll(&entry, 1, kSoonMs);
    steps = {};
  });
  EXPECT_TRUE(await([&] { return relies.load(); }));
  may_take = true;
  first.join();
  EXPECT_EQ(first_found, 0) << "there was nothing left for it";
  send();
  second.join();
  EXPECT_EQ(second_found, 1);
  EXPECT_GT(result, 0) << "nothing woke it";
}

class RsocketsSteps : public RsocketsApi {
 protected:
  void TearDown() override {
    steps = {};
    RsocketsApi::TearDown();
  }
  void connect_peer() {
    listen_now();
    ASSERT_TRUE(peer.connect(address)) << std::strerror(errno);
    server = raccept(listener, nullptr, nullptr);
    ASSERT_GE(server, 0) << std::strerror(errno);
    ASSERT_TRUE(peer.next_message().has_value());
  }
  /// Whether an event of the rsocket's connection waits: its descriptor is that of its event channel.
  static bool has_connection_event(int fd) {
    pollfd entry{fd, POLLIN, 0};
    return ::poll(&entry, 1, 0) == 1;
  }
  /// Looks at the rsocket until a condition holds; false: that many looks were not enough.
  template <class Condition>
  bool look_until(int fd, Condition condition) {
    for (int i = 0; i < kManyLooks && !condition(); ++i) poll_one(fd, 0, 0);
    return condition();
  }

  Peer peer;
};

class DatagramSteps : public Datagrams {
 protected:
  void TearDown() override {
    steps = {};
    Datagrams::TearDown();
  }
};

}  // namespace

TEST_F(RsocketsSteps, Poll_WithoutWaiting_ReportsThatThePeerDisconnected) {
  connect_peer();
  peer.disconnect();
  ASSERT_TRUE(await([&] { return has_connection_event(server); }));
  EXPECT_TRUE(look_until(server, [&] { return poll_one(server, 0, 0) != 0; }));
  EXPECT_EQ(number_of(server, SOL_SOCKET, SO_ERROR), ECONNRESET);
}

TEST_F(RsocketsSteps, Receive_DataJustBeforeADisconnect_ReturnsThem) {
  connect_peer();
  bool came = false;
  steps.before_event = [&] {
    ASSERT_EQ(peer.send_data("last"), IBV_WC_SUCCESS);
    peer.disconnect();
    came = await([&] { return has_connection_event(server); });
  };
  ASSERT_TRUE(look_until(server, [&] { return came; }));
  EXPECT_EQ(poll_one(server, 0, 0), POLLERR | POLLHUP) << "that look had the end";
  char room[8] = {};
  EXPECT_EQ(rrecv(server, room, sizeof room, 0), 4);
  EXPECT_STREQ(room, "last");
  EXPECT_EQ(error_of(rrecv(server, room, 1, 0)), ECONNRESET);
}

TEST_F(RsocketsSteps, PeerDisconnects_AfterBothShutdowns_IsNoReset) {
  connect_peer();
  ASSERT_EQ(peer.send(encode(Control::kShutdown)), IBV_WC_SUCCESS);
  ASSERT_TRUE(look_until(server, [&] { return poll_one(server, POLLRDHUP, 0) == POLLRDHUP; }));
  ASSERT_EQ(rshutdown(server, SHUT_WR), 0);
  ASSERT_EQ(peer.next_message(), encode(Control::kDisconnect));
  bool left = false;
  steps.after_event = [&](rdma_cm_event* event) { left = event->event == RDMA_CM_EVENT_DISCONNECTED; };
  peer.disconnect();
  ASSERT_TRUE(await([&] { return has_connection_event(server); }));
  ASSERT_TRUE(look_until(server, [&] { return left; }));
  EXPECT_EQ(poll_one(server, 0, 0), POLLHUP);
  EXPECT_EQ(number_of(server, SOL_SOCKET, SO_ERROR), 0);
  char c;
  EXPECT_EQ(rrecv(server, &c, 1, 0), 0);
}

TEST_F(RsocketsSteps, Connect_DisconnectedBeforeItIsEstablished_IsRefused) {
  const sockaddr_in to = peer.listen();
  client = rsocket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  ASSERT_EQ(error_of(rconnect(client, as_sockaddr(to), sizeof to)), EINPROGRESS);
  ASSERT_TRUE(await([&] {
    poll_one(client, POLLOUT, 0);
    return peer.has_event();
  }));
  ASSERT_TRUE(peer.requested());
  peer.refuse();
  ASSERT_TRUE(await([&] { return has_connection_event(client); }));
  // As a connection manager says it that has seen the connection stand.
  bool ended = false;
  steps.after_event = [&](rdma_cm_event* event) {
    ended = event->event == RDMA_CM_EVENT_REJECTED;
    event->event = RDMA_CM_EVENT_DISCONNECTED;
  };
  EXPECT_EQ(poll_one(client, POLLOUT, 0), POLLOUT | POLLERR | POLLHUP);
  EXPECT_TRUE(ended);
  EXPECT_EQ(number_of(client, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
}

TEST_F(RsocketsSteps, Event_TakenByAnotherThread_WakesItsWaiter) {
  connect_peer();
  uint32_t at = 0;
  take_an_event_of_another(server, [&] { EXPECT_EQ(peer.send_data("x", at++), IBV_WC_SUCCESS); });
}

TEST_F(RsocketsSteps, Event_OfDatagramsTakenByAnotherThread_WakesItsWaiter) {
  int ends[2];
  sockaddr_in addresses[2];
  for (int i = 0; i < 2; ++i) {
    ends[i] = rsocket(AF_INET, SOCK_DGRAM, 0);
    addresses[i] = loopback(0);
    socklen_t length = sizeof addresses[i];
    ASSERT_EQ(rbind(ends[i], as_sockaddr(addresses[i]), sizeof addresses[i]), 0);
    ASSERT_EQ(rgetsockname(ends[i], reinterpret_cast<sockaddr*>(&addresses[i]), &length), 0);
  }
  const auto send = [&](int from) {
    EXPECT_EQ(rsendto(ends[from], "x", 1, 0, as_sockaddr(addresses[1 - from]), sizeof addresses[1 - from]), 1);
  };
  // From then on they send between queue pairs.
  for (const int from : {0, 1, 0, 1}) {
    send(from);
    char c;
    ASSERT_EQ(poll_one(ends[1 - from], POLLIN, kSoonMs), POLLIN);
    ASSERT_EQ(rrecv(ends[1 - from], &c, 1, 0), 1);
  }
  take_an_event_of_another(ends[1], [&] { send(0); });
  for (const int fd : ends) rclose(fd);
}

TEST_F(RsocketsSteps, Listener_WithoutConnections_SleepsOn) {
  make_pair();
  // The message that it has a connection may still be on its way; then nothing more wakes its sleeper.
  constexpr int kTries = 20;
  int result = -1;
  for (int i = 0; i < kTries && result != 0; ++i) {
    steps.after_sleep = [&](int woken) { result = woken; };
    EXPECT_EQ(poll_one(listener, POLLIN, 1), 0);
  }
  EXPECT_EQ(result, 0) << "the one connection was accepted";
}

TEST_F(RsocketsSteps, Poll_ThreadWithoutAnEventfd_WakesForAConnection) {
  listen_now();
  std::atomic<bool> sleeps{false}, connected{false};
  int found = -1, woken = -1;
  std::thread waiting([&] {
    rlimit files{}, none{};
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
    none = {3, files.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    pollfd entry{listener, POLLIN, 0};
    EXPECT_EQ(rpoll(&entry, 1, 1), 0);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
    steps.before_sleep = [&] {
      sleeps = true;
      EXPECT_TRUE(await([&] { return connected.load(); }));
      steps.seconds = 1;
      steps.after_sleep = [&](int result) { woken = result; };
    };
    found = rpoll(&entry, 1, kSoonMs);
    steps = {};
  });
  EXPECT_TRUE(await([&] { return sleeps.load(); }));
  client = connect_one();
  EXPECT_GE(client, 0) << std::strerror(errno);
  EXPECT_TRUE(await([&] { return poll_one(listener, POLLIN, 0) == POLLIN; }));
  connected = true;
  waiting.join();
  EXPECT_EQ(found, 1);
  EXPECT_GT(woken, 0) << "nothing woke it";
}

TEST_F(DatagramSteps, Send_UdpHasNoRoom_WaitsUnlessItMustNot) {
  open_udp();
  const auto text_by_udp = [&] {
    char bytes[64];
    const ssize_t count = recv(udp.fd, bytes, sizeof bytes, MSG_DONTWAIT);
    return count < 16 ? "nothing came" : std::string(bytes + 16, static_cast<size_t>(count) - 16);
  };
  ASSERT_EQ(send(one, udp, "first"), 0);
  ASSERT_EQ(text_by_udp(), "first");
  steps.full_udp = one.fd;
  bool slept = false;
  steps.before_sleep = [&] {
    slept = true;
    steps.full_udp = -1;
  };
  EXPECT_EQ(send(one, udp, "second"), 0);
  EXPECT_TRUE(slept);
  EXPECT_EQ(text_by_udp(), "second");
  // Neither waits.
  steps.before_sleep = [] { ADD_FAILURE() << "it sleeps"; };
  steps.full_udp = one.fd;
  EXPECT_EQ(error_of(rsendto(one.fd, "x", 1, MSG_DONTWAIT, as_sockaddr(udp.address), sizeof udp.address)), EAGAIN);
  ASSERT_EQ(rfcntl(one.fd, F_SETFL, O_NONBLOCK), 0);
  EXPECT_EQ(send(one, udp, "x"), EAGAIN);
  pollfd entry{one.fd, POLLOUT, 0};
  EXPECT_EQ(rpoll(&entry, 1, 0), 0);
  steps.full_udp = -1;
  EXPECT_EQ(rpoll(&entry, 1, 0), 1);
  EXPECT_EQ(entry.revents, POLLOUT);
  EXPECT_EQ(send(one, udp, "third"), 0);
  EXPECT_EQ(text_by_udp(), "third");
}

TEST_F(DatagramSteps, Send_UdpHasNoRoomAndTheOtherThreadShutsDown_IsABrokenPipe) {
  open_udp();
  ASSERT_EQ(send(one, udp, "first"), 0);
  steps.full_udp = one.fd;
  steps.before_sleep = [&] { std::thread([&] { EXPECT_EQ(rshutdown(one.fd, SHUT_RDWR), 0); }).join(); };
  EXPECT_EQ(send(one, udp, "second"), EPIPE);
}

TEST_F(DatagramSteps, Send_ResolvesThePeer_OtherCallsGoOn) {
  three = open();
  ASSERT_EQ(send(one, two, "question"), 0);
  steps.before_event = [] { ADD_FAILURE() << "what a peer sends resolves nothing"; };
  ASSERT_EQ(receive(two), "question");
  bool waited = false;
  std::atomic<bool> done{false};
  std::thread other;
  steps.before_event = [&] {  // within the resolution
    waited = true;
    other = std::thread([&] {
      EXPECT_EQ(receive_error(two), EAGAIN);
      EXPECT_EQ(send(two, three, "to another"), 0);
      EXPECT_EQ(send(two, one, "by UDP meanwhile"), 0);
      done = true;
    });
    EXPECT_TRUE(await([&] { return done.load(); }));
  };
  EXPECT_EQ(send(two, one, "answer"), 0);
  EXPECT_TRUE(waited);
  if (other.joinable()) other.join();
  std::multiset<std::string> got{receive(one), receive(one)};
  EXPECT_EQ(got, (std::multiset<std::string>{"answer", "by UDP meanwhile"}));
  EXPECT_EQ(receive(three), "to another");
}

TEST_F(DatagramSteps, Send_ThePeerIsForgottenWhileItIsResolved_GoesOverUdp) {
  constexpr uint32_t kMostPeers = 16384;  // that an rsocket knows at once
  ASSERT_EQ(send(one, two, "question"), 0);
  ASSERT_EQ(receive(two), "question");
  steps.before_event = [&] {  // within the resolution
    End others = one;
    for (uint32_t i = 1; i <= kMostPeers; ++i) {
      others.address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + i);
      ASSERT_EQ(send(two, others, "x"), 0);
    }
  };
  ASSERT_EQ(send(two, one, "answer"), 0);
  EXPECT_FALSE(steps.before_event) << "nothing was resolved";
  EXPECT_EQ(receive(one), "answer");
  ASSERT_EQ(send(two, one, "again"), 0);
  EXPECT_EQ(receive(one), "again");
}

TEST_F(RsocketsSteps, Announcement_BufferUnmappedWhileItWaitsForRoom_OnlyTheNewOneIsAnnounced) {
  peer.mine.mappings = 1;
  peer.mine.targets.length = htobe32(Peer::kTargetEntries);
  peer.mine.credits = htobe16(1);
  connect_peer();
  ASSERT_EQ(rsend(server, "a", 1, 0), 1);
  ASSERT_EQ(peer.next_message(), encode(Op::kData, 1));
  char first[16], second[32];
  ASSERT_EQ(riomap(server, first, sizeof first, PROT_WRITE, 0, 700), 700);
  steps.before_sleep = [&] {
    EXPECT_EQ(riounmap(server, first, sizeof first), 0);
    EXPECT_EQ(riomap(server, second, sizeof second, PROT_WRITE, 0, 900), 900);
    EXPECT_EQ(peer.send(encode(Op::kCredits, 400)), IBV_WC_SUCCESS);
  };
  ASSERT_EQ(rsend(server, "b", 1, 0), 1);
  EXPECT_FALSE(steps.before_sleep) << "it did not wait";
  EXPECT_EQ(peer.next_message(), encode(Op::kMapping, 0));
  EXPECT_EQ(peer.next_message(), encode(Op::kData, 1));
  EXPECT_EQ(peer.memory().mappings[0].offset, 900u);
  EXPECT_EQ(peer.memory().mappings[0].buffer.addr, reinterpret_cast<uintptr_t>(second));
}
