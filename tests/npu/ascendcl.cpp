// AscendCL for machines without an NPU: what torch_npu calls of it to copy, and to order copies.
//
// Device memory is host memory that is known as such, a stream is a thread with a queue, and a copy to the device
// is late: it waits HELIX_ACL_COPY_US first, so that a source which is reused too early is seen, and a tensor that
// is read too early. Nothing computes. Calls that are not here are made by environment.py, and fail with their
// name.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#define API extern "C" __attribute__((visibility("default")))
#define HARMLESS(name) API int name() { return 0; }

using Status = int;
constexpr Status OK = 0, INVALID = 107000, NO_CONTEXT = 107002, NO_MEMORY = 207001;

static long setting(const char* name, long otherwise) {
    const char* text = std::getenv(name);
    return text ? std::atol(text) : otherwise;
}

static double now_ms() {
    using namespace std::chrono;
    return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}

// ---- memory: what kind lies where --------------------------------------------------------------------

enum Kind { UNKNOWN, PINNED, REGISTERED, DEVICE };
struct Range {
    size_t bytes;
    Kind kind;
};
static std::mutex memory_lock;
static std::map<uintptr_t, Range> memory;

static Kind kind_of(const void* pointer, size_t bytes = 1) {
    std::lock_guard<std::mutex> held(memory_lock);
    auto at = reinterpret_cast<uintptr_t>(pointer);
    auto after = memory.upper_bound(at);
    if (after == memory.begin()) return UNKNOWN;
    auto& [begin, range] = *std::prev(after);
    return at + bytes <= begin + range.bytes ? range.kind : UNKNOWN;
}

static void note(void* pointer, size_t bytes, Kind kind) {
    std::lock_guard<std::mutex> held(memory_lock);
    memory[reinterpret_cast<uintptr_t>(pointer)] = {bytes, kind};
}

static bool forget(void* pointer) {
    std::lock_guard<std::mutex> held(memory_lock);
    return memory.erase(reinterpret_cast<uintptr_t>(pointer)) > 0;
}

static Status allocate(void** pointer, size_t bytes, Kind kind) {
    if (posix_memalign(pointer, 4096, bytes ? bytes : 1)) return NO_MEMORY;
    std::memset(*pointer, 0xEE, bytes);  // what was never copied is seen
    note(*pointer, bytes, kind);
    return OK;
}

API Status aclrtMalloc(void** p, size_t n, int) { return allocate(p, n, DEVICE); }
API Status aclrtMallocAlign32(void** p, size_t n, int) { return allocate(p, n, DEVICE); }
API Status aclrtMallocHost(void** p, size_t n) { return allocate(p, n, PINNED); }
API Status aclrtFree(void* p) { return forget(p) ? std::free(p), OK : INVALID; }
API Status aclrtFreeHost(void* p) { return aclrtFree(p); }
API Status aclrtHostRegisterV2(void* p, uint64_t n, uint32_t flags) {
    bool pins = flags & 0x10000000, whole_pages = uintptr_t(p) % 4096 == 0 && n % 4096 == 0;
    if (kind_of(p) != UNKNOWN || !pins || !whole_pages || !n) return INVALID;
    note(p, n, REGISTERED);
    return OK;
}
API Status aclrtHostUnregister(void* p) { return kind_of(p) == REGISTERED && forget(p) ? OK : INVALID; }
API Status aclrtGetMemInfo(int, size_t* free, size_t* total) { return *free = *total = size_t(8) << 30, OK; }

struct Attributes {
    uint32_t id;
    int type;  // 0 host, 1 device, 2 not known to the driver
    uint32_t page;
    uint32_t reserved[4];
};
API Status aclrtPointerGetAttributes(const void* p, Attributes* found) {
    Kind kind = kind_of(p);
    *found = {};
    found->type = kind == DEVICE ? 1 : kind == UNKNOWN ? 2 : 0;
    return OK;
}

// ---- streams -----------------------------------------------------------------------------------------

class Stream {
public:
    Stream() { std::thread([this] { run(); }).detach(); }
    void push(std::function<void()> work) {
        std::lock_guard<std::mutex> held(lock);
        queue.push_back(std::move(work));
        changed.notify_all();
    }
    void finish() {
        std::unique_lock<std::mutex> held(lock);
        changed.wait(held, [this] { return idle(); });
    }
    bool done() {
        std::lock_guard<std::mutex> held(lock);
        return idle();
    }

private:
    bool idle() const { return queue.empty() && !busy; }
    void run() {
        std::unique_lock<std::mutex> held(lock);
        for (;;) {
            changed.wait(held, [this] { return !queue.empty(); });
            auto work = std::move(queue.front());
            queue.pop_front();
            busy = true;
            held.unlock();
            work();
            held.lock();
            busy = false;
            changed.notify_all();
        }
    }
    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::function<void()>> queue;
    bool busy = false;
};

static std::mutex streams_lock;
static std::set<Stream*> streams;

static Stream* stream_of(void* handle) {
    static Stream* of_device = new Stream;
    return handle ? static_cast<Stream*>(handle) : of_device;
}

API Status aclrtCreateStreamWithConfig(void** handle, uint32_t, uint32_t) {
    auto* stream = new Stream;
    std::lock_guard<std::mutex> held(streams_lock);
    streams.insert(stream);
    return *handle = stream, OK;
}
API Status aclrtCreateStream(void** handle) { return aclrtCreateStreamWithConfig(handle, 0, 0); }
API Status aclrtDestroyStream(void* handle) { return stream_of(handle)->finish(), OK; }
API Status aclrtSynchronizeStream(void* handle) { return stream_of(handle)->finish(), OK; }
API Status aclrtSynchronizeStreamWithTimeout(void* handle, int) { return aclrtSynchronizeStream(handle); }
API Status aclrtStreamQuery(void* handle, int* state) { return *state = !stream_of(handle)->done(), OK; }
API Status aclrtStreamGetId(void* handle, int* id) { return *id = int(uintptr_t(handle) >> 6), OK; }
API Status aclrtSynchronizeDevice() {
    stream_of(nullptr)->finish();
    std::lock_guard<std::mutex> held(streams_lock);
    for (auto* stream : streams) stream->finish();
    return OK;
}
API Status aclrtSynchronizeDeviceWithTimeout(int) { return aclrtSynchronizeDevice(); }

// ---- copies ------------------------------------------------------------------------------------------

constexpr int TO_DEVICE = 1;

static void copy(void* to, const void* from, size_t bytes, int direction) {
    if (direction == TO_DEVICE)
        std::this_thread::sleep_for(std::chrono::microseconds(setting("HELIX_ACL_COPY_US", 0)));
    std::memcpy(to, from, bytes);
}

static bool legal(const void* to, const void* from, size_t bytes, int direction) {
    bool to_device = kind_of(to, bytes) == DEVICE, from_device = kind_of(from, bytes) == DEVICE;
    switch (direction) {
        case 0: return !to_device && !from_device;
        case TO_DEVICE: return to_device && !from_device;
        case 2: return !to_device && from_device;
        case 3: return to_device && from_device;
        default: return false;
    }
}

API Status aclrtMemcpy(void* to, size_t room, const void* from, size_t bytes, int direction) {
    if (bytes > room || !legal(to, from, bytes, direction)) return INVALID;
    return copy(to, from, bytes, direction), OK;
}
API Status aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t bytes, int direction, void* stream) {
    if (bytes > room || !legal(to, from, bytes, direction)) return INVALID;
    stream_of(stream)->push([=] { copy(to, from, bytes, direction); });
    return OK;
}

// ---- events ------------------------------------------------------------------------------------------

struct Event {
    std::mutex lock;
    std::condition_variable changed;
    long recorded = 0, passed = 0;
    double passed_ms = 0;
    long last() {
        std::lock_guard<std::mutex> held(lock);
        return recorded;
    }
    void wait_for(long number) {
        std::unique_lock<std::mutex> held(lock);
        changed.wait(held, [=] { return passed >= number; });
    }
};

API Status aclrtCreateEventExWithFlag(void** event, uint32_t) { return *event = new Event, OK; }
API Status aclrtCreateEventWithFlag(void** event, uint32_t) { return *event = new Event, OK; }
API Status aclrtDestroyEvent(void*) { return OK; }  // streams may still pass it
API Status aclrtResetEvent(void*, void*) { return OK; }
API Status aclrtRecordEvent(void* handle, void* stream) {
    auto* event = static_cast<Event*>(handle);
    std::unique_lock<std::mutex> held(event->lock);
    long number = ++event->recorded;
    held.unlock();
    stream_of(stream)->push([=] {
        std::lock_guard<std::mutex> held(event->lock);
        event->passed = number;
        event->passed_ms = now_ms();
        event->changed.notify_all();
    });
    return OK;
}
API Status aclrtStreamWaitEvent(void* stream, void* handle) {
    auto* event = static_cast<Event*>(handle);
    long number = event->last();
    stream_of(stream)->push([=] { event->wait_for(number); });
    return OK;
}
API Status aclrtSynchronizeEvent(void* handle) {
    auto* event = static_cast<Event*>(handle);
    return event->wait_for(event->last()), OK;
}
API Status aclrtQueryEventStatus(void* handle, int* state) {
    auto* event = static_cast<Event*>(handle);
    std::lock_guard<std::mutex> held(event->lock);
    return *state = event->passed >= event->recorded, OK;
}
API Status aclrtEventElapsedTime(float* ms, void* begin, void* end) {
    *ms = float(static_cast<Event*>(end)->passed_ms - static_cast<Event*>(begin)->passed_ms);
    return OK;
}

// ---- the device --------------------------------------------------------------------------------------

static thread_local int device = -1;

API Status aclInit(const char*) { return OK; }
API Status aclFinalize() { return OK; }
API const char* aclGetRecentErrMsg() { return ""; }
API const char* aclrtGetSocName() { return "Ascend910B2"; }
API Status aclrtGetDeviceCount(uint32_t* count) { return *count = 1, OK; }
API Status aclrtSetDevice(int number) { return number == 0 ? device = 0, OK : INVALID; }
API Status aclrtGetDevice(int* number) { return device < 0 ? NO_CONTEXT : (*number = device, OK); }
API Status aclrtResetDevice(int) { return OK; }
API Status aclrtGetCurrentContext(void** context) {
    return device < 0 ? NO_CONTEXT : (*context = reinterpret_cast<void*>(uintptr_t(1 + device)), OK);
}
API Status aclrtSetCurrentContext(void* context) { return device = int(uintptr_t(context)) - 1, OK; }
API Status aclrtGetPrimaryCtxState(int, uint32_t* flags, int* active) { return *flags = 0, *active = 1, OK; }
API Status aclGetDeviceCapability(uint32_t, int, int64_t* value) { return *value = 1, OK; }
API Status aclrtGetSysParamOpt(int, int64_t* value) { return *value = 0, OK; }
API Status aclrtSetSysParamOpt(int, int64_t) { return OK; }
API size_t aclGetCompileoptSize(int) { return 16; }
API Status aclGetCompileopt(int, char* value, size_t room) { return std::strncpy(value, "disable", room), OK; }

struct Version {
    char text[128], parts[4][64], reserved[128];
};
static const char* driver_version() {
    const char* said = std::getenv("HELIX_ACL_DRIVER");
    return said ? said : "25.5.0";
}
API Status aclsysGetCANNVersion(int package, Version* found) {
    std::memset(found, 0, sizeof *found);
    std::strncpy(found->text, package == 7 ? driver_version() : "9.1.0", sizeof found->text - 1);
    return OK;
}
API Status aclsysGetVersionStr(char* package, char* found) {
    std::strcpy(found, !std::strcmp(package, "driver") ? driver_version() : "9.1.0");
    return OK;
}

// Traces, dumps and logs of a start: nothing depends on them.
HARMLESS(MsprofRegisterCallback)
HARMLESS(MsprofReportAdditionalInfo)
HARMLESS(MsprofReportApi)
HARMLESS(MsprofReportCompactInfo)
HARMLESS(MsprofGetHashId)
HARMLESS(MsprofSysCycleTime)
HARMLESS(aclAppLog)
HARMLESS(aclmdlInitDump)
HARMLESS(aclmdlSetDump)
HARMLESS(aclmdlFinalizeDump)
HARMLESS(aclrtSetOpExecuteTimeOut)
HARMLESS(aclrtSetOpWaitTimeout)
HARMLESS(aclSetCompileopt)
HARMLESS(aclrtSetDeviceSatMode)
HARMLESS(HcclSetConfig)
HARMLESS(aclrtCtxSetSysParamOpt)
HARMLESS(rtDevBinaryRegister)
HARMLESS(rtFunctionRegister)
