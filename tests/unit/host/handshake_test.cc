// SPDX-License-Identifier: Apache-2.0
// The first message between two processes, and every message after it: who may send it, and what it must look like.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "host/handshake.h"
#include "host/peer_table.h"
#include "fixture.h"

namespace nupa::host::test {
namespace {

int error_of(const Result<Handshake>& result) { return result ? 0 : result.error().code(); }

class CmHandshake : public ::testing::Test {
 protected:
  int check(Received received) { return error_of(check_hello(ends_.one.get(), std::move(received))); }
  int check_slot(uint32_t slot) {
    FakeProcess process(slot);
    return check(process.received_hello());
  }

  Ends ends_ = make_pair();
  FakeProcess process_;
};

TEST_F(CmHandshake, OfThisUser_IsTaken) {
  auto handshake = check_hello(ends_.one.get(), process_.received_hello());
  ASSERT_TRUE(handshake) << handshake.error().what();
  EXPECT_EQ(77u, handshake->hello.slot);
  EXPECT_EQ(process_.header().instance, handshake->hello.instance);
  EXPECT_EQ(getpid(), handshake->credentials.pid);
  EXPECT_EQ(geteuid(), handshake->credentials.uid);
  handshake->tables.header->attention.store(5);
  EXPECT_EQ(5u, process_.header().attention.load()) << "the tables are the sender's";
  struct stat sent, got;
  ASSERT_EQ(0, fstat(process_.region_fd(), &sent));
  ASSERT_EQ(0, fstat(handshake->region.get(), &got));
  EXPECT_EQ(sent.st_ino, got.st_ino);
  const uint64_t one = 1;
  uint64_t rung = 0;
  ASSERT_EQ(8, ::write(handshake->wakeup_fd.get(), &one, sizeof one));
  EXPECT_EQ(8, ::read(process_.wakeup_fd(), &rung, sizeof rung));
}

TEST_F(CmHandshake, OfAnotherUser_IsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "not root: no other user can be played";
  const base::UniqueFd socket = socket_from_user(kNobody);
  EXPECT_EQ(EACCES, error_of(check_hello(socket.get(), process_.received_hello())));
  // Root's own sockets are no different from any user's.
  EXPECT_EQ(0, check(process_.received_hello()));
}

TEST_F(CmHandshake, CheckedByAnOrdinaryUser_OfRootIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "not root: no other user can be played";
  EXPECT_EQ(0, in_child([&] {
              if (setresuid(kNobody, kNobody, kNobody) != 0) return 1;
              return check(process_.received_hello()) == EACCES ? 0 : 2;
            }));
}

TEST_F(CmHandshake, OnASocketWithoutASender_IsRefused) {
  const base::UniqueFd unconnected(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_NE(0, error_of(check_hello(unconnected.get(), process_.received_hello())));
}

TEST_F(CmHandshake, OfAnotherKind_IsRefused) {
  for (const MessageKind kind :
       {MessageKind::kObserver, MessageKind::kChannel, MessageKind::kGoodbye, MessageKind::kPayload}) {
    Received received = process_.received_hello();
    received.message.kind = static_cast<uint32_t>(kind);
    EXPECT_EQ(EPROTO, check(std::move(received))) << static_cast<uint32_t>(kind);
  }
}

TEST_F(CmHandshake, WithADescriptorMissing_IsRefused) {
  Received received = process_.received_hello();
  received.fds[2].reset();
  received.fd_count = 2;
  EXPECT_EQ(EPROTO, check(std::move(received)));
}

TEST_F(CmHandshake, WithASlotOutOfRange_IsRefused) {
  EXPECT_EQ(EPROTO, check_slot(shm::kMinSlot - 1));
  EXPECT_EQ(0, check_slot(shm::kMinSlot));
  EXPECT_EQ(0, check_slot(shm::kMaxSlot));
  EXPECT_EQ(EPROTO, check_slot(shm::kMaxSlot + 1));
}

/// A copy of `fd`'s first bytes without any seal, so that it could shrink.
base::UniqueFd unsealed(int fd) {
  base::UniqueFd copy(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(0, ftruncate(copy.get(), shm::kHeapOffset));
  std::vector<char> bytes(4096);
  EXPECT_GE(pread(fd, bytes.data(), bytes.size(), 0), 0);
  EXPECT_EQ(4096, pwrite(copy.get(), bytes.data(), bytes.size(), 0));
  return copy;
}

TEST_F(CmHandshake, WithASegmentThatMayShrink_IsRefused) {
  Received received = process_.received_hello();
  received.fds[0] = unsealed(process_.segment_fd());
  const base::UniqueFd kept(dup(received.fds[0].get()));
  EXPECT_EQ(EPROTO, check(std::move(received)));
  // With the seal the same file is good: nothing else was wrong with it.
  ASSERT_EQ(0, fcntl(kept.get(), F_ADD_SEALS, F_SEAL_SHRINK));
  received = process_.received_hello();
  received.fds[0].reset(dup(kept.get()));
  EXPECT_EQ(0, check(std::move(received)));
}

TEST_F(CmHandshake, WithARegionThatMayShrink_IsRefused) {
  for (const int seals : {0, F_SEAL_GROW, F_SEAL_SEAL}) {
    Received received = process_.received_hello();
    received.fds[1] = unsealed(process_.region_fd());
    ASSERT_TRUE(seals == 0 || fcntl(received.fds[1].get(), F_ADD_SEALS, seals) == 0);
    EXPECT_EQ(EPROTO, check(std::move(received))) << seals;
  }
}

TEST_F(CmHandshake, WithAPlainFileAsSegment_IsRefused) {
  Received received = process_.received_hello();
  received.fds[0].reset(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(EPROTO, check(std::move(received)));
}

TEST_F(CmHandshake, WithASegmentOfTheWrongSize_IsRefused) {
  for (const off_t size : {off_t{0}, off_t{4096}, static_cast<off_t>(shm::kHeapOffset) - 1}) {
    base::UniqueFd small(memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(0, ftruncate(small.get(), size));
    ASSERT_EQ(0, fcntl(small.get(), F_ADD_SEALS, F_SEAL_SHRINK));
    Received received = process_.received_hello();
    received.fds[0] = std::move(small);
    EXPECT_EQ(EPROTO, check(std::move(received))) << size;
  }
}

TEST_F(CmHandshake, WhoseSegmentNamesAnotherProcess_IsRefused) {
  Received received = process_.received_hello();
  ++received.message.slot;
  EXPECT_EQ(EPROTO, check(std::move(received)));
  received = process_.received_hello();
  ++received.message.instance;
  EXPECT_EQ(EPROTO, check(std::move(received)));
}

TEST_F(CmHandshake, WhoseSegmentIsOfAnotherVersion_IsRefused) {
  ++process_.header().version;
  EXPECT_EQ(EPROTO, check(process_.received_hello()));
  --process_.header().version;
  ++process_.header().magic;
  EXPECT_EQ(EPROTO, check(process_.received_hello()));
  --process_.header().magic;
  EXPECT_EQ(0, check(process_.received_hello()));
}

TEST(CrossMemoryCopy, IsTriedOnTheNumberThatTheProcessNames) {
  const uint64_t number = 0x123456789abcdef;
  const auto at = reinterpret_cast<uint64_t>(&number);
  EXPECT_TRUE(try_cma(getpid(), at, number));
  EXPECT_FALSE(try_cma(getpid(), at, number + 1)) << "what lies there is of another process";
  EXPECT_FALSE(try_cma(getpid(), 8, number)) << "nothing lies there";
  EXPECT_FALSE(try_cma(0, at, number)) << "its process cannot be seen from here";
}

// Messages on the socket.

class CmWire : public ::testing::Test {
 protected:
  /// Sends `bytes` bytes that begin with `message`, with `fds` copies of the token's descriptor.
  void send_raw(const Message& message, size_t bytes, size_t fds = 0) {
    std::vector<char> data(bytes + sizeof message);
    std::memcpy(data.data(), &message, sizeof message);
    iovec part{data.data(), bytes};
    alignas(cmsghdr) char control[CMSG_SPACE(32 * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (fds > 0) {
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(fds * sizeof(int));
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(fds * sizeof(int));
      for (size_t i = 0; i < fds; ++i) {
        const int fd = token_.fd();
        std::memcpy(CMSG_DATA(rights) + i * sizeof fd, &fd, sizeof fd);
      }
    }
    ASSERT_EQ(static_cast<ssize_t>(bytes), sendmsg(ends_.one.get(), &header, 0));
  }
  int error_of_next() {
    const auto received = receive_message(ends_.other.get());
    return received ? 0 : received.error().code();
  }
  static Message message(MessageKind kind = MessageKind::kGoodbye) {
    return {kWireMagic, kWireVersion, static_cast<uint32_t>(kind), 3, 4, 5, 6};
  }

  Ends ends_ = make_pair();
  Token token_;
};

TEST_F(CmWire, EachFieldArrives) {
  const Message sent = message(MessageKind::kChannel);
  const int fds[] = {token_.fd()};
  ASSERT_TRUE(send_message(ends_.one.get(), sent, fds, 1));
  auto received = receive_message(ends_.other.get());
  ASSERT_TRUE(received);
  EXPECT_EQ(0, std::memcmp(&sent, &received->message, sizeof sent));
  ASSERT_EQ(1u, received->fd_count);
  EXPECT_NE(0, fcntl(received->fds[0].get(), F_GETFD) & FD_CLOEXEC) << "no program that is started gets it";
  token_.drop();
  EXPECT_FALSE(token_.closed());
  *received = Received();
  EXPECT_TRUE(token_.closed());
}

TEST_F(CmWire, WithoutAMessage_ReceivingDoesNotWait) {
  const Ends blocking = make_pair(0);
  const auto received = receive_message(blocking.other.get());
  ASSERT_FALSE(received);
  EXPECT_EQ(EAGAIN, received.error().code());
}

TEST_F(CmWire, WithoutRoom_SendingDoesNotWait) {
  const Ends blocking = make_pair(0);
  int error = 0;
  for (int i = 0; i < 100'000 && error == 0; ++i)
    if (auto sent = send_message(blocking.one.get(), message(), nullptr, 0); !sent) error = sent.error().code();
  EXPECT_EQ(EAGAIN, error);
}

TEST_F(CmWire, ToAProcessThatIsGone_SendingFails) {
  ends_.other.reset();
  const auto sent = send_message(ends_.one.get(), message(), nullptr, 0);
  ASSERT_FALSE(sent);
  EXPECT_EQ(EPIPE, sent.error().code());
}

TEST_F(CmWire, OfTheWrongProtocol_AMessageIsRefused) {
  Message wrong = message();
  wrong.magic ^= 1;
  send_raw(wrong, sizeof wrong);
  EXPECT_EQ(EPROTO, error_of_next());
  for (const uint32_t version : {kWireVersion - 1, kWireVersion + 1}) {
    wrong = message();
    wrong.version = version;
    send_raw(wrong, sizeof wrong);
    EXPECT_EQ(EPROTO, error_of_next()) << version;
  }
}

TEST_F(CmWire, OfTheWrongLength_AMessageIsRefused) {
  const Message plain = message();
  for (const size_t bytes : {size_t{1}, sizeof plain - 1, sizeof plain + 1, sizeof plain + sizeof(Payload)}) {
    send_raw(plain, bytes);
    EXPECT_EQ(EPROTO, error_of_next()) << bytes;
  }
  const Message payload = message(MessageKind::kPayload);
  for (const size_t bytes :
       {sizeof payload, sizeof payload + sizeof(Payload) - 1, sizeof payload + sizeof(Payload) + 1}) {
    send_raw(payload, bytes);
    EXPECT_EQ(EPROTO, error_of_next()) << bytes;
  }
  send_raw(plain, sizeof plain);
  EXPECT_EQ(0, error_of_next());
  send_raw(payload, sizeof payload + sizeof(Payload));
  EXPECT_EQ(0, error_of_next());
}

TEST_F(CmWire, WithTooManyDescriptors_AMessageIsRefusedAndTheyAreClosed) {
  for (const size_t count : {kMaxFds + 1, size_t{16}, size_t{17}, size_t{30}}) {
    send_raw(message(), sizeof(Message), count);
    EXPECT_EQ(EPROTO, error_of_next()) << count;
  }
  token_.drop();
  EXPECT_TRUE(token_.closed()) << "none leaks";
  Token three;
  const int fds[] = {three.fd(), three.fd(), three.fd()};
  ASSERT_TRUE(send_message(ends_.one.get(), message(), fds, kMaxFds));
  const auto received = receive_message(ends_.other.get());
  ASSERT_TRUE(received);
  EXPECT_EQ(kMaxFds, received->fd_count);
}

TEST_F(CmWire, ThatIsRefused_AMessageLeaksNoDescriptor) {
  Message wrong = message();
  wrong.version = 0;
  send_raw(wrong, sizeof wrong, 2);
  EXPECT_EQ(EPROTO, error_of_next());
  token_.drop();
  EXPECT_TRUE(token_.closed());
}

TEST_F(CmWire, HungUp_IsNotConnected) {
  ends_.one.reset();
  EXPECT_EQ(ENOTCONN, error_of_next());
}

TEST_F(CmWire, WaitingForAMessage_EndsWithOneOrWithTheTime) {
  const auto none = wait_readable(ends_.other.get(), 1);
  ASSERT_FALSE(none);
  EXPECT_EQ(ETIMEDOUT, none.error().code());
  send_raw(message(), sizeof(Message));
  EXPECT_TRUE(wait_readable(ends_.other.get(), kSoonMs));
}

TEST_F(CmWire, WaitingForAMessage_WhileSignalsComeAgainAndAgain_EndsInTime) {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) {};
  ASSERT_EQ(0, sigaction(SIGUSR1, &action, &before));
  std::atomic<bool> over{false};
  const pthread_t waiter = pthread_self();
  std::thread profiler([&] {
    constexpr int kSignals = 1000;
    for (int i = 0; i < kSignals && !over; ++i) {
      pthread_kill(waiter, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // sleep: the rate at which signals come
    }
    if (!over) send_raw(message(), sizeof(Message));
  });
  const auto none = wait_readable(ends_.other.get(), 50);
  over = true;
  profiler.join();
  sigaction(SIGUSR1, &before, nullptr);
  ASSERT_FALSE(none) << "each signal began the time anew";
  EXPECT_EQ(ETIMEDOUT, none.error().code());
}

TEST_F(CmWire, WaitingForAMessage_WhileASignalIsHandled_GoesOn) {
  static std::atomic<int> handled;
  handled = 0;
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { ++handled; };
  ASSERT_EQ(0, sigaction(SIGUSR1, &action, &before));
  std::atomic<pid_t> waiter{0};
  int error = 0;
  std::thread waiting([&] {
    waiter = gettid();
    const auto ready = wait_readable(ends_.other.get(), kSoonMs);
    error = ready ? 0 : ready.error().code();
  });
  EXPECT_TRUE(soon([&] { return waiter != 0; }));
  const std::string status = "/proc/self/task/" + std::to_string(waiter) + "/stat";
  EXPECT_TRUE(soon([&] {
    std::string number, name, state;
    std::ifstream(status) >> number >> name >> state;
    return state == "S";
  }));
  EXPECT_EQ(0, pthread_kill(waiting.native_handle(), SIGUSR1));
  EXPECT_TRUE(soon([&] { return handled != 0; }));
  send_raw(message(), sizeof(Message));
  waiting.join();
  EXPECT_EQ(0, error);
  sigaction(SIGUSR1, &before, nullptr);
}

TEST_F(CmWire, CredentialsAreThoseOfTheOtherSide) {
  const auto own = peer_credentials(ends_.one.get());
  ASSERT_TRUE(own);
  EXPECT_EQ(getpid(), own->pid);
  EXPECT_EQ(geteuid(), own->uid);
  if (geteuid() != 0) return;
  const base::UniqueFd socket = socket_from_user(kNobody);
  const auto other = peer_credentials(socket.get());
  ASSERT_TRUE(other);
  EXPECT_EQ(kNobody, other->uid);
  EXPECT_NE(getpid(), other->pid);
}

// What is known of a process after its hello.

class CmPeers : public ::testing::Test {
 protected:
  PeerRef meet(FakeProcess& process) {
    auto handshake = check_hello(ends_.one.get(), process.received_hello());
    EXPECT_TRUE(handshake);
    return handshake ? table_.adopt(std::move(*handshake)) : nullptr;
  }

  Ends ends_ = make_pair();
  PeerTable table_;
  FakeProcess process_;
};

TEST_F(CmPeers, MetTwice_AProcessIsOnePeer) {
  const PeerRef first = meet(process_);
  EXPECT_EQ(first, meet(process_));
  EXPECT_EQ(1u, table_.alive().size());
  EXPECT_EQ(first, table_.find(77));
  EXPECT_EQ(nullptr, table_.find(78));
}

TEST_F(CmPeers, AfterItsDeath_ASlotIsAnotherProcesss) {
  const PeerRef first = meet(process_);
  ASSERT_TRUE(first->mark_exited());
  EXPECT_EQ(nullptr, table_.find(77));
  EXPECT_TRUE(table_.alive().empty());
  FakeProcess next(77, process_.header().instance + 1);
  const PeerRef second = meet(next);
  EXPECT_NE(first, second);
  EXPECT_EQ(second, table_.find(77));
  EXPECT_EQ(std::vector<PeerRef>{second}, table_.alive());
  EXPECT_EQ(next.header().instance, second->instance());
  EXPECT_FALSE(first->alive());
}

TEST_F(CmPeers, BeforeItsDeathIsSeen_ASlotIsTheNewerProcesss) {
  meet(process_);
  FakeProcess next(77, process_.header().instance + 1);
  const PeerRef second = meet(next);
  EXPECT_EQ(second, table_.find(77));
  second->mark_exited();
  EXPECT_EQ(process_.header().instance, table_.find(77)->instance());
}

TEST_F(CmPeers, CrossMemoryCopiesWork_WhereTheNumberIsFound) {
  EXPECT_TRUE(meet(process_)->cma_works());
  EXPECT_EQ(getpid(), table_.find(77)->pid());
  FakeProcess other(78);
  Received received = other.received_hello();
  received.message.probe = 8;
  auto handshake = check_hello(ends_.one.get(), std::move(received));
  ASSERT_TRUE(handshake);
  EXPECT_FALSE(table_.adopt(std::move(*handshake))->cma_works());
}

TEST_F(CmPeers, Gone_IsSeenOnce) {
  const PeerRef peer = meet(process_);
  EXPECT_TRUE(peer->alive());
  EXPECT_TRUE(peer->mark_exited());
  EXPECT_FALSE(peer->mark_exited());
  EXPECT_FALSE(peer->has_exited_cleanly()) << "it was killed";
}

TEST_F(CmPeers, GoneWhileClosing_IsACleanExit) {
  const PeerRef peer = meet(process_);
  process_.header().closing.store(1);
  EXPECT_FALSE(peer->has_exited_cleanly());
  peer->mark_exited();
  EXPECT_TRUE(peer->has_exited_cleanly());
}

TEST_F(CmPeers, Gone_KeepsNoDescriptorAndMapsNothing) {
  Token wakeup_fd, channel, region_of_it;
  Received received = process_.received_hello();
  received.fds[2] = wakeup_fd.take();
  auto handshake = check_hello(ends_.one.get(), std::move(received));
  ASSERT_TRUE(handshake);
  const PeerRef peer = table_.adopt(std::move(*handshake));
  peer->set_channel(9, channel.take().release());
  void* const place = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_TRUE(base::grow_shared_file(process_.region_fd(), 4096));
  EXPECT_EQ(0, peer->map_region(place, 4096, 0));
  EXPECT_TRUE(peer->heap(0, 4096));
  EXPECT_FALSE(wakeup_fd.closed() || channel.closed());
  peer->mark_exited();
  EXPECT_TRUE(wakeup_fd.closed());
  EXPECT_TRUE(channel.closed());
  EXPECT_EQ(ESRCH, peer->map_region(place, 4096, 0));
  EXPECT_FALSE(peer->signal_channel(9));
  peer->signal_wakeup_fd();
  peer->set_channel(9, region_of_it.take().release());
  EXPECT_TRUE(region_of_it.closed()) << "what still arrives is closed";
  EXPECT_FALSE(peer->signal_channel(9));
  munmap(place, 4096);
}

TEST_F(CmPeers, Gone_ClosesADescriptorWithTheLowestNumberToo) {
  const PeerRef peer = meet(process_);
  const base::UniqueFd input(dup(STDIN_FILENO));
  close(STDIN_FILENO);
  const int lowest = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  peer->set_channel(9, lowest);
  const bool was_signalled = peer->signal_channel(9);
  peer->mark_exited();
  const bool closed = fcntl(lowest, F_GETFD) < 0;
  if (input) dup2(input.get(), STDIN_FILENO);
  EXPECT_EQ(lowest, STDIN_FILENO);
  EXPECT_TRUE(was_signalled);
  EXPECT_TRUE(closed);
}

TEST_F(CmPeers, AChannelIsSignalled_FromItsArrivalToItsEnd) {
  const PeerRef peer = meet(process_);
  const base::UniqueFd channel(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  EXPECT_FALSE(peer->signal_channel(Peer::kMaxChannels - 1)) << "it has not arrived";
  peer->set_channel(Peer::kMaxChannels - 1, dup(channel.get()));
  EXPECT_TRUE(peer->signal_channel(Peer::kMaxChannels - 1));
  EXPECT_FALSE(peer->signal_channel(Peer::kMaxChannels)) << "there is none with that index";
  EXPECT_FALSE(peer->signal_channel(0));
  uint64_t count = 0;
  ASSERT_EQ(8, ::read(channel.get(), &count, sizeof count));
  EXPECT_EQ(1u, count);
  peer->set_channel(Peer::kMaxChannels - 1, -1);
  EXPECT_FALSE(peer->signal_channel(Peer::kMaxChannels - 1));
}

TEST_F(CmPeers, AChannelIndexUsedAgain_ClosesTheFormerDescriptor) {
  const PeerRef peer = meet(process_);
  Token former, next;
  peer->set_channel(0, former.take().release());
  peer->set_channel(0, next.take().release());
  EXPECT_TRUE(former.closed());
  EXPECT_FALSE(next.closed());
  peer->set_channel(0, -1);
  EXPECT_TRUE(next.closed());
}

TEST_F(CmPeers, Eventfd_WakesItsOwner) {
  const PeerRef peer = meet(process_);
  peer->signal_wakeup_fd();
  uint64_t count = 0;
  EXPECT_EQ(8, ::read(process_.wakeup_fd(), &count, sizeof count));
  EXPECT_EQ(1u, count);
}

}  // namespace
}  // namespace nupa::host::test
