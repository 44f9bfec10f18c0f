/* The protocol of one key, for Spin: workers that claim, renew, complete, release and crash, a clock that lapses leases
   and ends the retention, and a network that loses, repeats and delays. TAKEOVER is at-least-once, without it at-most-once.
   Names of faults (UNFENCED_COMPLETE, ...) seed one; each must be found. */

#ifndef WORKERS
#define WORKERS 3
#endif
#ifndef TRIES
#define TRIES 1 /* tries of each worker, each with an owner of its own */
#endif
#ifndef ASKED
#define ASKED 2 /* how often a call without an answer is asked */
#endif

mtype = { ABSENT, IN_PROGRESS, FINISHED };            /* states of a record */
mtype = { CLAIM, COMPLETE, RELEASE };                 /* calls that may arrive late */
mtype = { GRANTED, IN_FLIGHT, UNKNOWN, MISMATCH, REPLAY };

/* --- the record: semel.core.records --- */
mtype state = ABSENT;
byte owner = 0;
byte attempt = 0;
byte fingerprint = 0;
byte result = 0;           /* the owner whose result it is */
bool lapsed = false;       /* the lease has run out */
bool past = false;         /* the retention has passed */

/* --- the oracle: nothing below reads it but assertions --- */
byte newest = 0;           /* the owner of the newest grant */
byte entered = 0;          /* how often the work was entered and did not declare that nothing was done */
byte highest = 0;          /* the greatest attempt number that was granted */
byte answer = 0;           /* the result that was sent to somebody */
bit generation = 0;        /* since the key was free for the last time */

chan late = [1] of { mtype, byte, byte };

/* --- what a store does: semel.core.model --- */
inline grant(me, print) {
	owner = me; fingerprint = print; lapsed = false; newest = me
}

inline claim(me, print, reply) {
	if
	:: state == IN_PROGRESS && owner == me && fingerprint == print && !past -> reply = GRANTED
	:: else ->
		if
		:: state == ABSENT ->
			attempt = 1; highest = 1; state = IN_PROGRESS; grant(me, print); reply = GRANTED
		:: state != ABSENT && past ->
			past = false; result = 0; entered = 0; answer = 0; generation = 1 - generation;
			attempt = 1; highest = 1; state = IN_PROGRESS; grant(me, print); reply = GRANTED
#ifndef OTHER_FINGERPRINT
		:: state != ABSENT && !past && fingerprint != print -> reply = MISMATCH
#define SAME fingerprint == print
#else
#define SAME true
#endif
#ifdef TAKE_LIVE
		:: state == IN_PROGRESS && !past && SAME ->
#else
		:: state == IN_PROGRESS && !past && SAME && !lapsed -> reply = IN_FLIGHT
#if defined(TAKEOVER) || defined(RUN_UNKNOWN)
		:: state == IN_PROGRESS && !past && SAME && lapsed ->
#else
		:: state == IN_PROGRESS && !past && SAME && lapsed -> reply = UNKNOWN
		:: false ->
#endif
#endif
			assert(lapsed);
			assert(fingerprint == print);
#ifndef ATTEMPT_STUCK
			attempt++;
#endif
			assert(attempt > highest); highest = attempt;
			grant(me, print); reply = GRANTED
		:: state == FINISHED && !past && SAME -> reply = REPLAY; assert(fingerprint == print)
		fi
	fi
}

inline renew(me, ours) {
#ifdef UNFENCED_RENEW
	if :: state == IN_PROGRESS -> ours = true; lapsed = false; assert(me == newest) :: else -> ours = false fi
#else
	if :: state == IN_PROGRESS && owner == me -> ours = true; lapsed = false; assert(me == newest) :: else -> ours = false fi
#endif
}

inline complete(me, ours) {
#ifdef UNFENCED_COMPLETE
	if
	:: state != ABSENT ->
#else
	if
	:: state == FINISHED && owner == me -> ours = true
	:: state == IN_PROGRESS && owner == me ->
#endif
		assert(me == newest);
		assert(result == 0);
		ours = true; state = FINISHED; result = me; lapsed = false
	:: else -> ours = false
	fi
}

inline release(me) {
	if
#ifdef UNFENCED_RELEASE
	:: state == IN_PROGRESS ->
#else
	:: state == IN_PROGRESS && owner == me ->
#endif
		assert(me == newest);
		if
		:: attempt == 1 -> state = ABSENT; owner = 0; attempt = 0; past = false
		:: else -> owner = 0; lapsed = true; newest = 0
		fi
	:: else -> skip
	fi
}

/* --- what callers see --- */
inline send(what, since) {
	if
	:: since == generation -> assert(answer == 0 || answer == what); answer = what
	:: else -> skip /* nothing is promised after retention */
	fi
}

/* --- what a front does: semel.core.protocol ---
   kill -9 is a worker that takes no further step: Spin tries that at every step, because it tries every order. */
proctype worker(byte id) {
	byte tried = 0, asked = 0, me = 0, print = 1;
	mtype reply = UNKNOWN;
	bool ours = false;
	bit born = 0;
	if :: id == WORKERS - 1 -> print = 2 :: else -> skip fi; /* another request under the same key */

again:
	atomic { /* what does not matter any more is forgotten: fewer states */
		reply = UNKNOWN; ours = false; asked = 0; born = 0; me = 0;
		if :: tried == TRIES -> goto end :: tried < TRIES -> tried++; me = id * TRIES + tried fi
	};

acquire:
	atomic {
		if :: asked == ASKED -> goto undecided :: asked < ASKED -> asked++ fi;
		if
		:: true -> claim(me, print, reply); born = generation;
			if
			:: reply == GRANTED && asked > 1 -> skip
			:: reply == GRANTED && asked == 1 -> goto work
			:: reply == REPLAY -> send(result, generation); goto again
			:: reply != GRANTED && reply != REPLAY -> goto again
			fi
		:: true -> claim(me, print, reply); reply = UNKNOWN; goto acquire  /* it was done, and its answer is lost */
		:: true -> goto acquire                                            /* it is lost */
		:: nfull(late) -> late!CLAIM, me, print; goto acquire              /* it will arrive later */
		fi
	};
	atomic { /* its lease may be nearly over, or in other hands: work begins with a whole one */
		renew(me, ours); born = generation; reply = UNKNOWN;
		if :: ours -> skip :: !ours -> goto acquire fi
	};

work:
	atomic {
		reply = UNKNOWN; ours = false; asked = 0;
		if
		:: born == generation -> entered++
#ifndef TAKEOVER
			; assert(entered <= 1)
#endif
		:: else -> skip /* nothing is promised after retention */
		fi
	};
	do
	:: atomic { renew(me, ours); ours = false }
	:: goto settle
	:: atomic { true -> if :: born == generation -> entered-- :: else -> skip fi }; goto give_back /* nothing was done */
	od;

settle:
#ifdef SEND_FIRST
	atomic { send(me, born) };
#endif
	atomic {
		if
		:: asked == ASKED -> /* its answer is marked, and says so */
#ifdef RELEASE_ON_AMBIGUITY
			release(me);
#endif
			goto again
		:: asked < ASKED -> asked++
		fi;
		if
		:: true -> complete(me, ours)
		:: true -> complete(me, ours); ours = false; goto settle
		:: true -> goto settle
		:: nfull(late) -> late!COMPLETE, me, 0; goto settle
		fi
	};
	atomic {
		if
		:: ours -> send(me, born)
#ifdef OWN_ANSWER
		:: !ours -> send(me, born)
#else
		:: !ours && state == FINISHED && !past && fingerprint == print -> send(result, generation) /* superseded */
		:: !ours && !(state == FINISHED && !past && fingerprint == print) -> skip
#endif
		fi;
		goto again
	};

undecided: /* nothing ran: 503, and the claim is given back */
#ifdef ASSUME_CLAIM
	atomic { born = generation; goto work };
#endif
	atomic { asked = 0 };
give_back:
	atomic {
		if :: asked == ASKED -> goto again :: asked < ASKED -> asked++ fi;
		if
		:: true -> release(me); goto again
		:: true -> release(me); goto give_back
		:: true -> goto give_back
		:: nfull(late) -> late!RELEASE, me, 0; goto give_back
		fi
	};
end:	skip
}

/* What is on its way may arrive at any later time; sent now as well, it arrives twice. */
proctype network() {
	mtype what = CLAIM, reply = UNKNOWN;
	byte me = 0, print = 0;
	bool ours = false;
end:	do
	:: atomic {
		late?what, me, print ->
		if
		:: what == CLAIM -> claim(me, print, reply)
		:: what == COMPLETE -> complete(me, ours)
		:: what == RELEASE -> release(me)
		fi;
		what = CLAIM; me = 0; print = 0; reply = UNKNOWN; ours = false
	}
	od
}

/* The store's clock: a lease lapses, the retention passes (once, or the model would be endless), and purge forgets. */
proctype clock() {
	bool passed = false;
end:	do
	:: atomic { state == IN_PROGRESS && !lapsed -> lapsed = true }
#ifdef PURGE_OWED
	:: atomic { state != ABSENT && (state == FINISHED || lapsed) -> state = ABSENT; owner = 0; attempt = 0; past = false }
#elif !defined(KEPT)
	:: atomic { !passed && !past && (state == FINISHED || (state == IN_PROGRESS && lapsed)) -> past = true; passed = true }
	:: atomic { past && state != ABSENT && (state == FINISHED || lapsed) ->
		state = ABSENT; owner = 0; attempt = 0; past = false; result = 0; entered = 0; answer = 0; generation = 1 - generation }
#endif
	od
}

init {
	byte id = 0;
	atomic {
		run clock(); run network();
		do
		:: id < WORKERS -> run worker(id); id++
		:: else -> break
		od
	}
}
