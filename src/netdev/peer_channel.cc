// SPDX-License-Identifier: Apache-2.0
#include "netdev/peer_channel.h"

#include <arpa/inet.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <new>

#include "base/clock.h"
#include "base/system_error.h"

namespace nupa::netdev {
namespace {

/// The most data messages in flight, and the entries of a queue. The entries also serve the other messages.
constexpr uint32_t kMaxUnread = 192;
constexpr uint32_t kQueueEntries = 512;
static_assert(PeerChannel::kMaxCompletions == 2 * kQueueEntries);
/// Read bytes are given back after a part of the ring or after this number of messages, whichever is first.
constexpr uint64_t kGiveBackBytes = kRingBytes / 8;
constexpr uint32_t kGiveBackMessages = kMaxUnread / 4;

// A message's 32 bits. The upper two give its kind. For positions, the others are the low bits of the record number.
constexpr uint32_t kAbout = 3u << 30;
constexpr uint32_t kDataUpTo = 0u << 30;
constexpr uint32_t kReadUpTo = 1u << 30;
constexpr uint32_t kWakeUp = 2u << 30;
constexpr uint32_t kProbe = 3u << 30;
constexpr uint32_t kIsAnswer = 1u << 29;
constexpr uint64_t kPositions = uint64_t{1} << 30;

uint32_t word_of(uint32_t about, uint64_t position) {
  return about | static_cast<uint32_t>(position / kRecordAlign % kPositions);
}

/// Returns the position of the word, which is at most one ring after `from`. Returns nothing if there is none.
std::optional<uint64_t> position_in(uint32_t word, uint64_t from) {
  const uint64_t ahead = ((word & ~kAbout) - from / kRecordAlign) % kPositions * kRecordAlign;
  if (ahead > kRingBytes) return std::nullopt;
  return from + ahead;
}

}  // namespace

Result<std::unique_ptr<PeerChannel>> PeerChannel::create(Device& device, ProtectionDomain& pd, CompletionQueue& cq,
                                                         uint64_t number) {
  std::unique_ptr<PeerChannel> channel(new PeerChannel);
  channel->number_ = number;
  auto ring = device.alloc_mr(pd, kRingRegionBytes, access::kLocalWrite | access::kRemoteWrite | access::kRemoteRead,
                              MemorySource::kTransport);
  if (!ring) return tl::unexpected(ring.error());
  channel->ring_ = std::move(*ring);
  channel->words_ = new (channel->ring_->addr()) RingWords{};
  channel->reader_ = RingReader(reinterpret_cast<const std::byte*>(channel->words_ + 1));
  if (getrandom(&channel->psn_, sizeof channel->psn_, 0) != sizeof channel->psn_)
    return base::fail_call(errno, "cannot get random numbers from the kernel");
  channel->psn_ &= 0xffffff;
  auto qp = device.create_qp(
      &pd, {.send_cq = &cq,
            .recv_cq = &cq,
            .cap = {.max_send_wr = kQueueEntries, .max_recv_wr = kQueueEntries, .max_send_sge = 1, .max_recv_sge = 0},
            .signal_all = true});
  if (!qp) return tl::unexpected(qp.error());
  channel->qp_ = std::move(*qp);
  // The copy is allocated here, too, because the peer info must not announce a channel that may fail later.
  auto copy = device.alloc_mr(pd, kRingBytes, access::kLocalWrite);
  if (!copy) return tl::unexpected(copy.error());
  channel->copy_ = std::move(*copy);
  return channel;
}

ChannelInfo PeerChannel::info() const {
  return {qp_->number(), psn_, ring_->rkey(), reinterpret_cast<uint64_t>(words_)};
}

int PeerChannel::connect(const ConnectOptions& path, const ChannelInfo& peer) {
  peer_ = peer;
  if (const int error = initialise(*qp_, access::kRemoteWrite | access::kRemoteRead); error != 0) return error;
  for (uint32_t i = 0; i < kQueueEntries; ++i)
    if (!post_receive()) return error_;
  constexpr uint8_t kRnrTimer = 1;     // 0.01 ms (IBTA table 45): receives are posted again at once
  constexpr uint8_t kAckTimeout = 14;  // 67 ms; seven retries of four timeouts each are two seconds
  ConnectOptions options = path;
  options.dest_qp_num = peer.qp_num;
  options.rq_psn = psn_;
  options.sq_psn = peer.psn;
  options.min_rnr_timer = kRnrTimer;
  options.timeout = kAckTimeout;
  return connect_initialised(*qp_, options);
}

void PeerChannel::start_sending() {
  auto mapped =
      qp_->map_remote(peer_.rkey, peer_.address, kRingRegionBytes, access::kRemoteRead | access::kRemoteWrite);
  if (mapped) {
    remote_ = std::move(*mapped);
    remote_words_ = reinterpret_cast<RingWords*>(remote_.get());
    writer_ = RingWriter(reinterpret_cast<std::byte*>(remote_words_ + 1));
    copy_.reset();
  } else {
    writer_ = RingWriter(static_cast<std::byte*>(copy_->addr()));
  }
}

std::byte* PeerChannel::reserve() {
  const uint64_t before = writer_.tail();
  std::byte* room = writer_.reserve(head_);
  if (room == nullptr && is_mapped()) {
    const uint64_t head = remote_words_->head.load(std::memory_order_acquire);
    // The peer's value is only used if it is possible.
    if (head >= head_ && head <= writer_.tail()) head_ = head;
    room = writer_.reserve(head_);
  }
  if (writer_.tail() != before) skipped_at_ = before;
  return room;
}

void PeerChannel::commit(uint32_t bytes) {
  writer_.commit(bytes);
  if (!is_mapped()) return;
  remote_words_->tail.store(writer_.tail(), std::memory_order_release);
}

void PeerChannel::flush() {
  if (published_ == writer_.tail()) return;
  if (!is_mapped()) return post_data();
  published_ = writer_.tail();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (remote_words_->sleeps.load(std::memory_order_relaxed) != 0 && remote_words_->sleeps.exchange(0) != 0)
    send_word(kWakeUp);
}

void PeerChannel::post_data() {
  if (unread_.size() >= kMaxUnread) return;  // later, one message announces all frames that were added meanwhile
  const uint64_t tail = writer_.tail();
  const uint64_t end = published_ / kRingBytes * kRingBytes + kRingBytes;
  qp_->post_begin();
  if (tail >= end) {
    const bool skips = skipped_at_ >= published_ && skipped_at_ < end;
    write(published_, (skips ? skipped_at_ + sizeof(Record) : end) - published_, tail == end);
    published_ = end;
  }
  if (tail > published_) write(published_, tail - published_, true);
  qp_->post_end();
  published_ = tail;
  unread_.push_back(tail);
}

void PeerChannel::write(uint64_t from, uint64_t bytes, bool has_word) {
  const uint64_t at = from % kRingBytes;
  const Sge piece{reinterpret_cast<uint64_t>(copy_->addr()) + at, static_cast<uint32_t>(bytes), copy_->lkey()};
  const int error = qp_->post({.wr_id = number_ * kKinds + kData,
                               .sg_list = &piece,
                               .num_sge = 1,
                               .opcode = has_word ? Opcode::kRdmaWriteWithImm : Opcode::kRdmaWrite,
                               .flags = send_flag::kSolicited,
                               .imm_or_rkey = has_word ? htonl(word_of(kDataUpTo, writer_.tail())) : 0,
                               .rkey = peer_.rkey,
                               .remote_addr = peer_.address + sizeof(RingWords) + at});
  if (error != 0) fail(error);
}

bool PeerChannel::wait_for_room() {
  if (is_mapped()) {
    remote_words_->waits.store(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  return reserve() == nullptr;
}

std::optional<std::span<const std::byte>> PeerChannel::next() {
  // Only one of the two positions is used; the other remains zero.
  auto frame = reader_.next(std::max(words_->tail.load(std::memory_order_acquire), announced_tail_));
  if (reader_.is_broken()) fail(EPROTO);
  return frame;
}

void PeerChannel::give_back() {
  const uint64_t head = reader_.head();
  if (head == given_back_) return;
  if (!comes_by_messages_) {
    given_back_ = head;
    words_->head.store(head, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (words_->waits.load(std::memory_order_relaxed) != 0 && words_->waits.exchange(0) != 0) send_word(kWakeUp);
  } else if (head - given_back_ >= kGiveBackBytes || messages_since_ >= kGiveBackMessages) {
    given_back_ = head;
    messages_since_ = 0;
    send_word(word_of(kReadUpTo, head));
  }
}

bool PeerChannel::wait_for_frames() {
  words_->sleeps.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return words_->tail.load(std::memory_order_acquire) <= reader_.head();
}

void PeerChannel::awake() { words_->sleeps.store(0, std::memory_order_relaxed); }

bool PeerChannel::post_receive() {
  if (const int error = qp_->post_recv({.wr_id = number_ * kKinds + kReceive}); error != 0) fail(error);
  return error_ == 0;
}

void PeerChannel::send_word(uint32_t word) {
  const int error = qp_->post_send({.wr_id = number_ * kKinds + kWord,
                                    .opcode = Opcode::kRdmaWriteWithImm,
                                    .flags = send_flag::kSolicited,
                                    .imm_or_rkey = htonl(word)});
  if (error != 0) fail(error);
}

void PeerChannel::probe() {
  probed_at_ns_ = base::now_ns();
  send_word(kProbe);
}

void PeerChannel::on_word(uint32_t word) {
  switch (word & kAbout) {
    case kDataUpTo: {
      const auto tail = position_in(word, announced_tail_);
      if (!tail) return fail(EPROTO);
      announced_tail_ = *tail;
      comes_by_messages_ = true;
      ++messages_since_;
      return;
    }
    case kReadUpTo: {
      const auto head = position_in(word, head_);
      if (!head || *head > published_) return fail(EPROTO);
      head_ = *head;
      while (!unread_.empty() && unread_.front() <= head_) unread_.pop_front();
      return flush();
    }
    case kProbe:
      if ((word & kIsAnswer) == 0)
        send_word(kProbe | kIsAnswer);
      else if (probed_at_ns_ != 0)
        round_trip_ns_.store(base::now_ns() - probed_at_ns_, std::memory_order_relaxed);
      return;
    default:
      return;  // kWakeUp: the message itself has woken this side
  }
}

void PeerChannel::on_completion(const WorkCompletion& completion) {
  if (completion.status != WcStatus::kSuccess) return fail(EIO);
  if (completion.wr_id % kKinds != kReceive) return;
  const bool has_word =
      completion.opcode == WcOpcode::kRecvRdmaWithImm && (completion.wc_flags & wc_flag::kWithImm) != 0;
  if (!has_word) return fail(EPROTO);
  if (post_receive()) on_word(ntohl(completion.imm_data));
}

}  // namespace nupa::netdev
