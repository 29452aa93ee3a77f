-- Answers a part of an exchange; the table is that of stores/protocol/transitions.py, and so are the names.
-- KEYS: one per request. ARGV[1]: settings. ARGV[2]: the columns: kind or outcome, number of keys, attempt, and 1 with the first
-- token of a row of them, or 0 with all tokens. A complete has the length of what is unrecorded in place of the attempt, and that last.
-- ARGV[3]: the owner of what is claimed or renewed. What follows are owners that are gone.
-- The answer is one string: the number of keys, then what went otherwise than well: the place, a byte for a complete, release and
-- renew or nine for a claim, and the holder's name behind a claim that is busy, or what is unrecorded behind one that is done.
--
-- A record under way: flags, kept_until, token, leased_until, epoch, next_attempt, lost, owner. A completed one:
-- flags, kept_until and the end of the token, 5 bytes or, in a page, 2: they only tell a complete that is repeated from
-- another's, and the offset may advance after either; then what is unrecorded. Flags: 1 to 3 the outcome, 4 took_unreleased. Instants are milliseconds. Numbers are doubles here, so
-- tokens stay bytes.

local CLAIM, RELEASE, SEND_BACK, RENEW = 0, 4, 5, 6  -- 1 to 3 complete, with that outcome
local SUCCESS, DEATH = 1, 2  -- outcomes
local OK, RESTORED, LOST, LOST_DONE = 'O', 'R', 'L', 'D'
local BUSY, ACQUIRED, ACQUIRED_UNRELEASED, DONE, STALE = 0, 1, 2, 3, 4
local TOOK_UNRELEASED = 4
local OWNER = 34  -- where it begins in a record under way
local FREE = string.rep('\0', 8)
local GRACE = 60000  -- kept_until decides; Redis may delete a minute later
local FRACTIONS = 4194303  -- of a period, when a completed record is forgotten: 22 bits, which are exact up to 70 minutes

local mine = ARGV[3] or ''
local gone = {}
for i = 4, #ARGV do
  gone[ARGV[i]] = ARGV[i] ~= ''  -- nobody in particular is never gone
end

local lease, retention, always_write, period, page_bits, repeated = struct.unpack('>I6I6BI6BB', ARGV[1])
local compact = period > 0
local token_end = compact and 2 or 5
local done_size = 7 + token_end  -- of a completed record of which nothing is unrecorded
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function kept_until(value)
  return (struct.unpack('>I6', value, 2))
end

local function is_done(value)
  local flags = string.byte(value)
  return flags > 0 and flags < TOOK_UNRELEASED
end

-- The hash that keeps a completed record until the end of a period, and the field in it. The first bits of the id say which
-- page; the bytes that they fill are left out of the field.
local function page(key, number)
  local id = #key - 15
  local head = struct.unpack('>I3', key, id)
  local name = string.sub(key, 1, id - 1) .. struct.pack('>I4I3', number, math.floor(head / 2 ^ (24 - page_bits)))
  return name, string.sub(key, id + math.floor(page_bits / 8))
end

local function from_pages(key)
  local first = math.floor(now / period)
  for number = first, first + 2 do
    local name, field = page(key, number)
    local entry = redis.call('HGET', name, field)
    if entry then
      local packed, token = struct.unpack('>I3c2', entry)
      local kept = number * period + math.floor(packed % (FRACTIONS + 1) * period / FRACTIONS)
      if now < kept then
        return struct.pack('>BI6', math.floor(packed / (FRACTIONS + 1)), kept) .. token
      end
    end
  end
  return false
end

local function into_page(key, value)
  local kept = kept_until(value)
  local number = math.ceil(kept / period) - 1
  local name, field = page(key, number)
  local packed = string.byte(value) * (FRACTIONS + 1) + math.ceil((kept - number * period) * FRACTIONS / period)
  redis.call('HSET', name, field, struct.pack('>I3c2', packed, string.sub(value, 8)))
  if redis.call('HLEN', name) == 1 then
    redis.call('PEXPIRE', name, (number + 1) * period - now + GRACE)
  end
  redis.call('DEL', key)
end

local texts = {}

-- What Redis is told: it would write out each number anew, slowly, and an exchange has few different ones.
local function text(milliseconds)
  if not texts[milliseconds] then
    texts[milliseconds] = string.format('%.0f', milliseconds)
  end
  return texts[milliseconds]
end

-- What is completed once more is in one page: the one that is looked at first would hide the other.
local function out_of_page(key, value)
  local name, field = page(key, math.ceil(kept_until(value) / period) - 1)
  redis.call('HDEL', name, field)
end

local function store(key, value)
  if compact and is_done(value) and #value == done_size then  -- a longer one would cost its page the short form
    into_page(key, value)
  else
    redis.call('SET', key, value, 'PX', text(kept_until(value) - now + GRACE))
  end
end

local function under_way(token, leased_until, epoch, next_attempt, lost, took_unreleased, owner)
  local flags = took_unreleased and TOOK_UNRELEASED or 0
  return struct.pack('>BI6c8I6I4I4I4', flags, leased_until + retention, token, leased_until, epoch, next_attempt, lost) .. owner
end

local function read(value)
  local flags, _, token, leased_until, epoch, next_attempt, lost = struct.unpack('>BI6c8I6I4I4I4', value)
  return flags == TOOK_UNRELEASED, token, leased_until, epoch, next_attempt, lost
end

local function answer(code, first, second)
  return struct.pack('>BI4I4', code, first or 0, second or 0)
end

local function acquired(took_unreleased, epoch, lost)
  return answer(took_unreleased and ACQUIRED_UNRELEASED or ACQUIRED, epoch, lost)
end

local FIRST = acquired(false, 1, 0)  -- a claim that goes well

local function claim(value, token, attempt)
  if not value then
    return under_way(token, now + lease, 1, attempt, 0, false, mine), acquired(false, 1, 0)
  elseif is_done(value) then
    return nil, answer(DONE, string.byte(value), #value - done_size) .. string.sub(value, done_size + 1)
  end
  local took_unreleased, owner, leased_until, epoch, next_attempt, lost = read(value)
  if attempt < next_attempt then
    return nil, answer(STALE)
  elseif owner == token then
    return under_way(token, now + lease, epoch, next_attempt, lost, took_unreleased, mine), acquired(took_unreleased, epoch, lost)
  end
  local released = owner == FREE
  local holder = string.sub(value, OWNER)
  if not released and now < leased_until and not gone[holder] then
    return nil, answer(BUSY, leased_until - now, #holder) .. holder
  end
  if attempt > next_attempt then
    lost = 0
  elseif not released then
    lost = lost + 1
  end
  return under_way(token, now + lease, epoch + 1, attempt, lost, not released, mine), acquired(not released, epoch + 1, lost)
end

local function complete(value, token, outcome, unrecorded)
  local done = struct.pack('>BI6', outcome, now + retention) .. string.sub(token, -token_end) .. unrecorded
  if not value then
    return done, RESTORED
  elseif outcome == SUCCESS and string.byte(value) == DEATH then
    return done, OK
  elseif is_done(value) then
    return nil, string.sub(value, 8, done_size) == string.sub(token, -token_end) and OK or LOST_DONE
  end
  local _, owner = read(value)
  if owner == token or (outcome == SUCCESS and token == FREE) then
    return done, OK
  end
  return nil, LOST
end

local function release(value, token, sent_back)
  if not value or is_done(value) then
    return nil, LOST
  end
  local _, owner, _, epoch, next_attempt, lost = read(value)
  if owner ~= token then
    return nil, LOST
  elseif sent_back then
    next_attempt, lost = sent_back, 0
  end
  return under_way(FREE, now, epoch, next_attempt, lost, false, ''), OK
end

local function renew(value, token)
  if not value or is_done(value) then
    return nil, LOST
  end
  local took_unreleased, owner, _, epoch, next_attempt, lost = read(value)
  if owner ~= token then
    return nil, LOST
  end
  return under_way(token, now + lease, epoch, next_attempt, lost, took_unreleased, mine), OK
end

local values = redis.call('MGET', unpack(KEYS))
local latest = {}  -- of a key that comes more than once

local function current(i)
  local key, value = KEYS[i], values[i]
  if repeated == 1 and latest[key] then
    return latest[key]
  end
  if value and now >= kept_until(value) then
    value = false
  end
  if not value and compact then
    value = from_pages(key)
  end
  return value
end

local call, pack, sub = redis.call, struct.pack, string.sub
local exceptions = {}
local wrote = false
local i, offset = 0, 1
while offset <= #ARGV[2] do
  local kind, count, attempt, in_a_row, high, low = struct.unpack('>BI2I4Bc4I4', ARGV[2], offset)
  local tokens = offset + 8
  offset = tokens + (in_a_row == 1 and 8 or 8 * count)
  local unrecorded = ''
  if kind > CLAIM and kind < RELEASE and attempt > 0 then
    unrecorded, offset = sub(ARGV[2], offset, offset + attempt - 1), offset + attempt
  end
  -- What all keys of the column that go well have in common.
  local first, rest, px
  if kind == CLAIM then
    first, rest = pack('>BI6', 0, now + lease + retention), pack('>I6I4I4I4', now + lease, 1, attempt, 0) .. mine
    px = text(lease + retention + GRACE)
  elseif kind < RELEASE and not compact then
    first, px = pack('>BI6', kind, now + retention), text(retention + GRACE)
  end
  for n = 0, count - 1 do
    i = i + 1
    local key, value = KEYS[i], current(i)
    local token = in_a_row == 1 and high .. pack('>I4', low + n) or sub(ARGV[2], tokens + 8 * n, tokens + 8 * n + 7)
    local after, said
    if kind == CLAIM and not value then
      after = first .. token .. rest
      call('SET', key, after, 'PX', px)
    elseif first and kind ~= CLAIM and value and sub(value, 8, 15) == token and not is_done(value) then
      after = first .. sub(token, -token_end) .. unrecorded
      call('SET', key, after, 'PX', px)
    else
      if kind == CLAIM then
        after, said = claim(value, token, attempt)
      elseif kind < RELEASE then
        after, said = complete(value, token, kind, unrecorded)
      elseif kind == RENEW then
        after, said = renew(value, token)
      else
        after, said = release(value, token, kind == SEND_BACK and attempt)
      end
      if said ~= OK and said ~= FIRST then
        exceptions[#exceptions + 1] = pack('>I2', i - 1) .. said
      end
      if after then
        if compact and value and is_done(value) then
          out_of_page(key, value)
        end
        store(key, after)
      end
    end
    if after then
      wrote = true
      if repeated == 1 then
        latest[key] = after
      end
    end
  end
end

-- WAIT waits for what this connection wrote. What others wrote must have arrived too, before it is believed.
if always_write == 1 and not wrote then
  for i, key in ipairs(KEYS) do
    local value = current(i)
    if value then
      store(key, value)
      break
    end
  end
end
return pack('>I2', #KEYS) .. table.concat(exceptions)
