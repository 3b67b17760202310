// The ring of frames between two nodes, and the proof of a network's key.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>

#include "api/netdev/proof.h"
#include "api/netdev/ring.h"

namespace nupa::netdev {
namespace {

struct Ring {
  std::vector<std::byte> memory = std::vector<std::byte>(kRingBytes + kRecordAlign);
  std::byte* data() {
    const auto address = reinterpret_cast<uintptr_t>(memory.data());
    return memory.data() + (kRecordAlign - address % kRecordAlign) % kRecordAlign;
  }
};

/// A frame whose bytes tell its number.
void fill(std::byte* room, uint32_t bytes, uint64_t number) {
  std::fill(room, room + bytes, static_cast<std::byte>(number % 251));
  if (bytes >= sizeof number) std::memcpy(room, &number, sizeof number);
}

bool is_right(std::span<const std::byte> frame, uint32_t bytes, uint64_t number) {
  std::vector<std::byte> wanted(bytes);
  fill(wanted.data(), bytes, number);
  return std::equal(frame.begin(), frame.end(), wanted.begin(), wanted.end());
}

uint32_t length_of(uint64_t number) {
  std::minstd_rand random(static_cast<uint32_t>(number + 1));
  const uint32_t kind = static_cast<uint32_t>(random()) % 4;
  return kind == 0 ? kMaxFrameBytes : static_cast<uint32_t>(random()) % (kind == 1 ? 100 : 20000);
}

TEST(NetdevRing, FramesComeInTheirOrderWhole) {
  Ring ring;
  RingWriter writer(ring.data());
  RingReader reader(ring.data());
  std::mt19937 random(7);
  uint64_t put = 0, taken = 0;
  for (int turn = 0; turn < 20000; ++turn) {
    for (auto more = random() % 8; more > 0; --more) {
      std::byte* const room = writer.reserve(reader.head());
      if (room == nullptr) break;
      fill(room, length_of(put), put);
      writer.commit(length_of(put));
      ++put;
    }
    for (auto more = random() % 8; more > 0; --more) {
      const auto frame = reader.next(writer.tail());
      if (!frame) break;
      ASSERT_TRUE(is_right(*frame, length_of(taken), taken)) << taken;
      reader.done();
      ++taken;
    }
  }
  EXPECT_GT(put, 20000u);
  EXPECT_GT(writer.tail(), 20 * kRingBytes);
  EXPECT_FALSE(reader.is_broken());
}

TEST(NetdevRing, AFullOneHasNoRoomUntilItIsRead) {
  Ring ring;
  RingWriter writer(ring.data());
  RingReader reader(ring.data());
  size_t frames = 0;
  while (std::byte* room = writer.reserve(0)) {
    fill(room, 1000, frames++);
    writer.commit(1000);
  }
  EXPECT_GT(frames, (kRingBytes - 2 * kMaxRecordBytes) / record_bytes(1000));
  EXPECT_EQ(nullptr, writer.reserve(0));
  for (size_t i = 0; i < frames; ++i) {
    const auto frame = reader.next(writer.tail());
    ASSERT_TRUE(frame && is_right(*frame, 1000, i)) << i;
    reader.done();
  }
  EXPECT_FALSE(reader.next(writer.tail()));
  EXPECT_NE(nullptr, writer.reserve(reader.head()));
}

TEST(NetdevRing, BetweenThreads) {
  Ring ring;
  alignas(64) RingWords words{};
  constexpr uint64_t kFrames = 3000;
  std::thread reading([&] {
    RingReader reader(ring.data());
    for (uint64_t number = 0; number < kFrames;) {
      const auto frame = reader.next(words.tail.load(std::memory_order_acquire));
      if (!frame) {
        std::this_thread::yield();
        continue;
      }
      ASSERT_TRUE(is_right(*frame, length_of(number), number)) << number;
      reader.done();
      words.head.store(reader.head(), std::memory_order_release);
      ++number;
    }
  });
  RingWriter writer(ring.data());
  for (uint64_t number = 0; number < kFrames;) {
    std::byte* const room = writer.reserve(words.head.load(std::memory_order_acquire));
    if (room == nullptr) {
      std::this_thread::yield();
      continue;
    }
    fill(room, length_of(number), number);
    writer.commit(length_of(number));
    words.tail.store(writer.tail(), std::memory_order_release);
    ++number;
  }
  reading.join();
}

TEST(NetdevRing, WhatCannotBeIsNotFollowed) {
  Ring ring;
  const auto put = [&](uint64_t at, uint32_t bytes) {
    const Record record{bytes, 0};
    std::memcpy(ring.data() + at, &record, sizeof record);
  };
  const auto breaks = [&](uint64_t tail) {
    RingReader reader(ring.data());
    const auto frame = reader.next(tail);
    return !frame && reader.is_broken();
  };
  put(0, 100);
  EXPECT_FALSE(breaks(record_bytes(100)));
  EXPECT_FALSE(breaks(0));
  EXPECT_TRUE(breaks(kRecordAlign));               // the record is longer than what is there
  EXPECT_TRUE(breaks(kRingBytes + kRecordAlign));  // more than fits
  EXPECT_TRUE(breaks(record_bytes(100) + 1));      // not where a record may end
  put(0, kMaxFrameBytes + 1);
  EXPECT_TRUE(breaks(kRingBytes));
  put(0, Record::kSkip);
  EXPECT_TRUE(breaks(kRingBytes - kRecordAlign));  // it skips what is not there
  EXPECT_FALSE(breaks(kRingBytes));
  // One that would reach over the end.
  RingReader reader(ring.data());
  put(0, kMaxFrameBytes);
  uint64_t at = 0;
  while (kRingBytes - at >= kMaxRecordBytes) {
    put(at, kMaxFrameBytes);
    at += kMaxRecordBytes;
    ASSERT_TRUE(reader.next(at));
    reader.done();
  }
  put(at, kMaxFrameBytes);
  EXPECT_FALSE(reader.next(at + kMaxRecordBytes));
  EXPECT_TRUE(reader.is_broken());
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

TEST(NetdevProof, HoldsForTheSameKeyNetworkNoncesAndWordsOnly) {
  const Key key = *new_key();
  const Nonce asking = *new_nonce(), answering = *new_nonce();
  const auto proof = [&](const Key& with, const std::string& network, const Nonce& one, const Nonce& other) {
    Proof made(with, network);
    made.set_asking(one);
    made.set_answering(other);
    return made;
  };
  const std::string said = "words";
  const Mac mac = proof(key, "lab", asking, answering).answers(bytes_of(said));
  EXPECT_TRUE(are_equal(mac, proof(key, "lab", asking, answering).answers(bytes_of(said))));
  EXPECT_FALSE(are_equal(mac, proof(*new_key(), "lab", asking, answering).answers(bytes_of(said))));
  EXPECT_FALSE(are_equal(mac, proof(key, "lob", asking, answering).answers(bytes_of(said))));
  EXPECT_FALSE(are_equal(mac, proof(key, "lab", *new_nonce(), answering).answers(bytes_of(said))));
  EXPECT_FALSE(are_equal(mac, proof(key, "lab", asking, *new_nonce()).answers(bytes_of(said))));
  EXPECT_FALSE(are_equal(mac, proof(key, "lab", asking, answering).answers(bytes_of("word"))));
  EXPECT_FALSE(are_equal(mac, proof(key, "lab", asking, answering).asks(bytes_of(said))));
  // A message stands for its sender and its place.
  const Proof one = proof(key, "lab", asking, answering);
  const Mac first = one.of_message(true, 0, bytes_of(said));
  EXPECT_FALSE(are_equal(first, one.of_message(false, 0, bytes_of(said))));
  EXPECT_FALSE(are_equal(first, one.of_message(true, 1, bytes_of(said))));
}

TEST(NetdevProof, KeysAreHexadecimalText) {
  const Key key = *new_key();
  EXPECT_EQ(key, *key_from_text(text_of(key)));
  EXPECT_EQ(key, *key_from_text(" \n" + text_of(key) + "\r\n"));
  EXPECT_NE(*new_key(), *new_key());
  for (const std::string& text : {std::string(), text_of(key) + "0", text_of(key).substr(1), std::string(64, 'g')})
    EXPECT_FALSE(key_from_text(text)) << text;
}

}  // namespace
}  // namespace nupa::netdev
